"""Conversations with the shipped model: ids that the next turn keeps, the trials behind its answers."""

import random
from collections.abc import Iterator

import pytest

from engine import Pool
from engine.errors import ConfigError
from engine.history import TrialLabel
from engine.settings import Settings
from engine.specs import Request, Sampling
from engine.workbench import Workbench
from engine.workbench.chat_ids import with_known_ids
from engine.workbench.trials import Draft, LiveTrial, Message
from tests.chat_model import CLOSING, write_chat_model
from tests.waiting import until

REQUEST = Request(max_tokens=24, top_k=5)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    """The workbench on a model whose template ends each answer with the end token."""
    folder = tmp_path_factory.mktemp("home")
    bench = Workbench(Settings.from_environment({"LOGITBENCH_HOME": str(folder)}))
    bench.model_manager.load(write_chat_model(folder / "chat.gguf", CLOSING))
    until(lambda: bench.model.engine)
    yield bench
    bench.close()


def asked(*texts: str) -> tuple[Message, ...]:
    """Messages of the user and answers of the model in turn."""
    return tuple({"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts))


def ended(trial: LiveTrial) -> LiveTrial:
    trial.job.result(60)
    until(lambda: trial.is_stored, "the trial is not stored")
    return trial


def said(trial: LiveTrial) -> str:
    assert trial.completion is not None
    return trial.completion.text


def turn(bench: Workbench, before: LiveTrial | None, text: str, seed: int = 3) -> LiveTrial:
    messages = (*before.draft.messages, *asked("", said(before))[1:]) if before else ()
    draft = Draft("", (*messages, *asked(text)), Sampling(seed=seed), REQUEST)
    return ended(bench.trials.submit(draft, TrialLabel.TURN if before else "", after=before))


def spelled(pool: Pool, ids: list[int]) -> list[tuple[int, bytes]]:
    """Text and control tokens in a row, however the text is split."""
    vocabulary, parts = pool.vocabulary, list[tuple[int, bytes]]()
    for id in ids:
        control = id + 1 if vocabulary.is_control(id) else 0
        if parts and not control and not parts[-1][0]:
            parts[-1] = (0, parts[-1][1] + vocabulary.pieces[id])
        else:
            parts.append((control, vocabulary.pieces[id]))
    return [part for part in parts if part != (0, b"")]


@pytest.mark.parametrize("seed", range(20))
def test_known_ids_stay_and_the_text_is_that_of_the_template(pool: Pool, seed: int) -> None:
    draw, vocabulary = random.Random(seed), pool.vocabulary
    end = vocabulary.end_tokens[0]
    text = "".join(draw.choice(["Once ", "🧑‍🚀", "\n\n", " a fox", "é", "</s>", "\0", "  "]) for _ in range(12))
    known = [*pool.tokenize("[user] Who?"), *draw.choices(range(len(vocabulary)), k=draw.randrange(20)), end]
    shown = vocabulary.join(known).decode("utf-8", "replace")
    whole = pool.tokenize(shown + text)
    rendered = [*whole[: len(whole) // 2], *[end] * draw.randrange(2), *whole[len(whole) // 2 :]]
    ids = with_known_ids(vocabulary, known, rendered)
    assert spelled(pool, ids) == spelled(pool, rendered)
    kept = next((n for n, (one, other) in enumerate(zip(ids, known, strict=False)) if one != other), len(known))
    alone = next((n for n, (one, other) in enumerate(zip(rendered, known, strict=False)) if one != other), len(known))
    assert kept >= alone


def test_an_answer_split_otherwise_is_kept_as_it_was_generated(pool: Pool) -> None:
    vocabulary = pool.vocabulary
    rendered = pool.tokenize("Once upon a time there was a fox. And then?")
    odd = [*rendered[:1], *(pool.tokenize(piece)[-1] for piece in "Onceupon"), *rendered[3:5]]
    single = [rendered[0], *(id for id in range(len(vocabulary)) if vocabulary.pieces[id] in (b" O", b"O"))][:2]
    assert with_known_ids(vocabulary, [], rendered) == rendered
    assert with_known_ids(vocabulary, rendered, rendered) == rendered
    assert with_known_ids(vocabulary, rendered[:4], rendered) == rendered
    assert with_known_ids(vocabulary, [*rendered, 300], rendered) == rendered
    assert spelled(pool, with_known_ids(vocabulary, odd, rendered)) == spelled(pool, rendered)
    assert spelled(pool, with_known_ids(vocabulary, single, rendered)) == spelled(pool, rendered)


def test_the_next_turn_goes_on_from_the_exact_ids(bench: Workbench) -> None:
    trial = turn(bench, None, "Who lives in the wood?")
    for number in range(3):
        last, trial = trial, turn(bench, trial, f"And then, {number}?")
        answer = list(last.steps.ids)
        assert list(trial.prompt_ids[: len(last.prompt_ids) + len(answer)]) == [*last.prompt_ids, *answer]
        engine, _ = bench.model.loaded()
        text, rendered = engine.render_chat(list(trial.draft.messages))
        assert trial.draft.prompt == text
        assert engine.vocabulary.join(trial.prompt_ids) == engine.vocabulary.join(rendered)
        assert trial.timings.num_cached >= len(last.prompt_ids) + len(answer) - 1


def test_another_answer_has_the_ids_of_the_same_prompt(bench: Workbench) -> None:
    first = turn(bench, None, "Who lives in the wood?")
    second = turn(bench, first, "Who else?")
    draft = Draft("", second.draft.messages, Sampling(seed=99, temperature=1.5), REQUEST)
    again = ended(bench.trials.submit(draft, TrialLabel.REGENERATE, after=second))
    assert again.prompt_ids == second.prompt_ids and again.parent == second.id


def test_ids_of_another_model_are_not_taken(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = turn(bench, None, "Who lives in the wood?")
    monkeypatch.setattr(first, "model", first.model.__class__("other", "", "ff" * 32, "Q8_0", 1))
    draft = Draft("", (*first.draft.messages, *asked("", said(first), "Who?")[1:]), Sampling(), REQUEST)
    engine, _ = bench.model.loaded()
    assert bench.trials.render(draft, first) == engine.render_chat(list(draft.messages))


def test_each_answer_knows_the_trial_that_gave_it(bench: Workbench) -> None:
    first = turn(bench, None, "Tell me of a king")
    twin = ended(bench.trials.submit(first.draft))
    assert said(twin) == said(first)
    second = turn(bench, first, "And his daughter?")
    third = turn(bench, second, "And her horse?")
    assert bench.conversations.answers(third) == [None, first.id, None, second.id, None]
    assert bench.conversations.answers(turn(bench, twin, "And his wife?")) == [None, twin.id, None]
    assert bench.conversations.answers(first) == [None]
    changed = Draft("", (third.draft.messages[0], {"role": "assistant", "content": "No."}, *asked("Why?")))
    assert bench.conversations.answers(ended(bench.trials.submit(changed))) == [None, None, None]
    forget(bench)
    assert bench.conversations.answers(bench.trials.trial(third.id)) == [None, first.id, None, second.id, None]
    bench.trials.delete(first.id)
    assert bench.conversations.answers(bench.trials.trial(third.id)) == [None, twin.id, None, second.id, None]


def test_an_answer_generated_anew_in_the_line_is_found(bench: Workbench) -> None:
    first = turn(bench, None, "Tell me of a wolf")
    again = ended(bench.trials.submit(first.draft, TrialLabel.REGENERATE, after=first))
    last = turn(bench, again, "And his teeth?")
    assert bench.conversations.answers(last)[1] == again.id
    forget(bench)
    assert bench.conversations.answers(bench.trials.trial(last.id))[1] == again.id


def test_of_a_chat_the_list_of_recent_trials_has_the_last_turn_and_each_edited_line(bench: Workbench) -> None:
    first = turn(bench, None, "Tell me of a mouse")
    second = turn(bench, first, "And the cat?")
    edited = Draft("", asked("Tell me of a rat"), Sampling(seed=1), REQUEST)
    other = ended(bench.trials.submit(edited, TrialLabel.EDIT, after=second))
    ids = [one.id for one in bench.trials.recent(3)]
    assert ids[:2] == [other.id, second.id] and first.id not in ids


def test_a_template_that_fails_is_said(bench: Workbench) -> None:
    with pytest.raises(ConfigError):
        bench.trials.render(Draft("", ({"role": "user"},)))


def forget(bench: Workbench) -> None:
    """Leave only what is stored, as after a restart."""
    with bench.trials._lock:
        bench.trials._trials.clear()
        bench.trials._read.clear()
