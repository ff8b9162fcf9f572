"""Watched words of a trial: against llama.cpp's own logits, phrases computed anew at every position among them."""

import math
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import log_softmax, logsumexp

from engine.errors import ConfigError
from engine.llama.context import Chunk, Context
from engine.llama.model import Model
from engine.models.library import embedded_model
from engine.models.synthetic import write_synthetic
from engine.settings import Settings
from engine.specs import PoolSpec, Request, Sampling
from engine.watched_words import MAX_WORDS, read_word, token_sets
from engine.workbench import Workbench
from engine.workbench.trial_records import record_of
from engine.workbench.trials import Draft, Trial
from engine.workbench.word_watching import Figures, WordWatcher
from tests.engine.workbench.conftest import ended
from tests.mamba_gguf import write_mamba
from tests.waiting import until

PROMPT = "Once upon a time there was a king"
SPEC = PoolSpec(parallel=1, n_ctx=512)


@pytest.fixture
def words(bench: Workbench) -> WordWatcher:
    """A watcher that has computed nothing yet."""
    return WordWatcher(bench.trials, bench.machine)


@pytest.fixture(scope="module")
def context() -> Iterator[Context]:
    """llama.cpp itself with the same model."""
    model = Model(str(embedded_model()), SPEC)
    made = Context(model, SPEC, threads=2, threads_batch=2)
    yield made
    made.close()
    model.close()


def trial_of(bench: Workbench, max_tokens: int = 24, **options: object) -> Trial:
    request = Request.from_dict({"max_tokens": max_tokens, "top_k": 20, **options})
    return ended(bench.trials.submit(Draft(PROMPT, sampling=Sampling(seed=5), request=request)))


def ids_of(trial: Trial) -> list[int]:
    return [*trial.prompt_ids, *trial.steps.ids]


def watched(words: WordWatcher, trial: Trial, *typed: str) -> list[Figures]:
    """Return the figures of words once all are computed, phrases too."""
    watching = words.watch(trial.id, typed, phrases=typed)
    if watching.task is not None:
        watching.task.result(60)
    assert watching.error == "" and [line.error for line in watching.lines] == [""] * len(typed)
    found = [line.figures for line in watching.lines]
    assert all(one is not None for one in found)
    return [one for one in found if one is not None]


def logprobs_after(context: Context, ids: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return the log-probabilities after each of `ids`, computed from nothing."""
    context.cut(0, 0)
    num_rows = context.fill([Chunk(0, list(ids), 0, len(ids))])
    assert context.decode() == 0
    logits = np.array([row.logits for row in context.logits(num_rows)])
    found: npt.NDArray[np.float64] = log_softmax(logits.astype(np.float64), axis=1)
    return found


def test_each_position_equals_llama_cpp_and_the_end_is_one_of_them(
    bench: Workbench, words: WordWatcher, context: Context
) -> None:
    trial = trial_of(bench)
    exact = logprobs_after(context, ids_of(trial))
    typed = ("king", "Yes|No", "#2", " the")
    engine, _ = bench.model.loaded()
    for one, found in zip(typed, watched(words, trial, *typed), strict=True):
        ids = list(read_word(engine, one).single_ids)
        assert len(found.logprob) == len(found.rank) == len(exact) + 1
        assert math.isnan(found.logprob[0]) and found.rank[0] == 0
        np.testing.assert_allclose(found.logprob[1:], logsumexp(exact[:, ids], axis=1), atol=1e-3)
        best = exact[:, ids].max(axis=1)
        assert (np.abs(found.rank[1:] - 1 - (exact > best[:, None]).sum(axis=1)) <= found.rank[1:] * 0.02).all()


def test_the_trials_own_tokens_have_their_recorded_probabilities(bench: Workbench, words: WordWatcher) -> None:
    """A trial that was scored was computed as the words are, in one pass: its candidates agree."""
    trial = ended(bench.trials.score(Draft(PROMPT * 3, request=Request(top_k=20))))
    tops = {candidate.id for step in trial.prompt_steps[1:] for candidate in step.top[:1]}
    tokens = sorted(tops)[:MAX_WORDS]
    watching = words.watch(trial.id, [f"#{token}" for token in tokens])
    assert watching.task is not None
    watching.task.result(60)
    assert watching.shift == pytest.approx(0, abs=1e-5)
    num_compared = 0
    for place, step in enumerate(trial.prompt_steps):
        recorded = {candidate.id: (candidate.logprob, rank) for rank, candidate in enumerate(step.top, 1)}
        for token, line in zip(tokens, watching.lines, strict=True):
            if token in recorded and line.figures is not None:
                assert line.figures.logprob[place] == pytest.approx(recorded[token][0], abs=1e-5)
                assert line.figures.rank[place] == recorded[token][1]
                num_compared += 1
    assert num_compared > 30


def test_a_phrase_equals_brute_force_at_every_position(bench: Workbench, words: WordWatcher, context: Context) -> None:
    trial = trial_of(bench, max_tokens=40)
    ids = ids_of(trial)
    engine, _ = bench.model.loaded()
    typed = ("the king", "Lily|Tom", '" New York"', 'queen|"queen"')
    for one, found in zip(typed, watched(words, trial, *typed), strict=True):
        word = read_word(engine, one)
        assert word.phrases
        expected = []
        for place in range(1, len(ids) + 1):
            variants = []
            for variant in word.watched:
                exact = logprobs_after(context, [*ids[:place], *variant.ids])[place - 1 : -1]
                variants.append(exact[range(len(variant.ids)), variant.ids].sum())
            expected.append(logsumexp(variants))
        np.testing.assert_allclose(found.logprob[1:], expected, atol=5e-3)
        assert math.isnan(found.logprob[0])


def test_phrases_wait_until_they_are_asked_for_and_are_kept(bench: Workbench, words: WordWatcher) -> None:
    trial = trial_of(bench, max_tokens=4)
    first = words.watch(trial.id, ["king", "the king"])
    assert first.task is not None
    first.task.result(60)
    single, phrase = first.lines
    assert single.figures is not None and phrase.figures is None
    assert phrase.word is not None and phrase.word.passes == 2
    (figures,) = watched(words, trial, "the king")
    again = words.watch(trial.id, ["the king", "king"])
    assert again.task is None and again.is_over
    assert [line.figures for line in again.lines] == [figures, single.figures]


def test_words_that_are_watched_while_it_runs_come_with_its_steps_and_are_not_kept(
    bench: Workbench, words: WordWatcher
) -> None:
    engine, _ = bench.model.loaded()
    sets = token_sets(engine, ["king", "the king", "", " king|queen", "king"])
    assert sets == (read_word(engine, "king").single_ids, read_word(engine, " king|queen").single_ids)
    trial = trial_of(bench, watched=sets)
    other = ended(bench.trials.continue_trial(trial, 4))
    assert not any(step.watched for step in other.steps)
    first = len(trial.prompt_ids)
    for step, found in zip(trial.steps, watched(words, trial, "king")[0].logprob[first:], strict=False):
        assert [word.ids for word in step.watched] == list(sets)
        assert step.watched[0].logprob == pytest.approx(found, abs=0.25)  # another batch
    kept = record_of(trial)
    assert kept.request.watched == () and trial.draft.request.watched == sets


def test_a_set_has_the_sum_of_its_words(bench: Workbench, words: WordWatcher) -> None:
    trial = trial_of(bench)
    both, one, other = watched(words, trial, '" king"|" queen"', '" king"', '" queen"')
    np.testing.assert_allclose(both.logprob[1:], np.logaddexp(one.logprob[1:], other.logprob[1:]), atol=1e-6)
    np.testing.assert_array_equal(both.rank[1:], np.minimum(one.rank, other.rank)[1:])


def test_a_full_context_has_no_word_behind_its_last_token(bench: Workbench, words: WordWatcher) -> None:
    engine, _ = bench.model.loaded()
    n_ctx = engine.capabilities.n_ctx
    endless = Sampling(seed=5, logit_bias=tuple((token, -math.inf) for token in engine.vocabulary.end_tokens))
    trial = ended(bench.trials.submit(Draft(PROMPT, sampling=endless, request=Request(max_tokens=n_ctx, top_k=1))))
    assert len(ids_of(trial)) == n_ctx + 1
    king, phrase = watched(words, trial, "king", '" the king"')
    assert math.isnan(king.logprob[-1]) and king.rank[-1] == 0 and np.isfinite(king.logprob[1:-1]).all()
    assert np.isfinite(phrase.logprob[1 : n_ctx - 1]).all() and np.isnan(phrase.logprob[n_ctx - 1 :]).all()


def test_a_stop_keeps_what_is_there_and_leaves_nothing_running(bench: Workbench, words: WordWatcher) -> None:
    trial = trial_of(bench, max_tokens=200)
    typed = [
        "king",
        *(f'" {a} {b} {c} {d}"' for a, b, c, d in zip("abcdef", "ghijkl", "mnopqr", "stuvwx", strict=True)),
    ]
    watching = words.watch(trial.id, typed, phrases=typed)
    task = watching.task
    assert task is not None
    until(lambda: watching.lines[0].figures is not None)
    shares = [0.0]

    def is_well_begun() -> bool:
        shares.append(task.share)
        return shares[-1] > 0.2

    until(is_well_begun)
    watching.stop()
    assert task.wait(60) and task.state == "stopped" and watching.is_over
    assert watching.error == "" and watching.progress is None
    assert any(line.figures is None for line in watching.lines)
    engine, _ = bench.model.loaded()
    until(lambda: engine.num_open == 0)
    assert not bench.machine.busy_with
    assert shares == sorted(shares)


def test_what_cannot_be_watched_says_why_and_the_others_are_computed(bench: Workbench, words: WordWatcher) -> None:
    trial = trial_of(bench, max_tokens=2)
    typed = ["", "x" * 10_000, "#99999", "king", "\x00\x1b[2J"]
    watching = words.watch(trial.id, typed)
    assert watching.task is not None
    watching.task.result(60)
    assert [bool(line.error) for line in watching.lines] == [True, True, True, False, False]
    assert [line.figures is not None for line in watching.lines] == [False, False, False, True, False]
    with pytest.raises(ConfigError, match=f"{MAX_WORDS + 1} watched words; at most {MAX_WORDS}"):
        words.watch(trial.id, ["a"] * (MAX_WORDS + 1))
    with pytest.raises(ConfigError, match="does not exist"):
        words.watch("nobody", ["a"])


def test_of_a_running_trial_only_the_tokens_of_the_words_are_sent(bench: Workbench, words: WordWatcher) -> None:
    trial = bench.trials.submit(Draft(PROMPT, sampling=Sampling(seed=5), request=Request(max_tokens=400)))
    until(lambda: len(trial.steps) > 2)
    watching = words.watch(trial.id, ["king", "the king"], phrases=["the king"])
    assert not trial.done() and watching.is_over and watching.task is None
    assert [line.figures for line in watching.lines] == [None, None]
    assert [line.word and bool(line.word.watched) for line in watching.lines] == [True, True]
    trial.job.cancel()
    ended(trial)
    assert len(watched(words, trial, "king")[0].logprob) == len(ids_of(trial)) + 1


def test_a_trial_that_was_stopped_before_it_began_has_nothing_to_watch(bench: Workbench, words: WordWatcher) -> None:
    engine, _ = bench.model.loaded()
    engine.pause()
    trial = bench.trials.submit(Draft(PROMPT, request=Request(max_tokens=4)))
    trial.job.cancel()
    engine.resume()
    with pytest.raises(ConfigError, match="has no tokens"):
        words.watch(ended(trial).id, ["king"])


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Workbench]:
    """A workbench without a model."""
    bench = Workbench(Settings.from_environment({"LOGITBENCH_HOME": str(tmp_path)}))
    yield bench
    bench.close()


def load(bench: Workbench, path: Path, spec: PoolSpec) -> None:
    bench.model_manager.load(path, spec)
    until(lambda: bench.model.engine is not None and not bench.model.is_loading)


def test_many_readers_at_once_get_the_same(other: Workbench) -> None:
    """One sequence: rounding in llama.cpp's kernels depends on which other sequences share a batch."""
    load(other, embedded_model(), SPEC)
    trial = trial_of(other)
    found: list[Figures] = []
    readers = [
        threading.Thread(target=lambda: found.append(watched(other.words, trial, "king", "the king")[1])) for _ in "abc"
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert len(found) == 3
    for one in found[1:]:
        np.testing.assert_allclose(one.logprob, found[0].logprob, atol=5e-3)


@pytest.mark.slow
def test_two_workers_give_what_one_gives(bench: Workbench, words: WordWatcher, other: Workbench) -> None:
    alone = watched(words, trial_of(bench), "king", "the king")
    load(other, embedded_model(), PoolSpec(instances=2, threads=1, parallel=3, n_ctx=512))
    trial = other.trials.submit_ids(Draft(PROMPT, request=Request(max_tokens=0)), ids_of(trial_of(bench)))
    both = watched(WordWatcher(other.trials, other.machine), ended(trial), "king", "the king")
    for one, two in zip(alone, both, strict=True):
        np.testing.assert_allclose(two.logprob, one.logprob, atol=5e-3)


@pytest.mark.slow
def test_another_model_is_refused_with_the_reason(other: Workbench, tmp_path: Path) -> None:
    load(other, embedded_model(), PoolSpec(parallel=2, n_ctx=256))
    trial = trial_of(other, max_tokens=4)
    write_synthetic("tiny", tmp_path / "tiny.gguf", "Q8_0")
    load(other, tmp_path / "tiny.gguf", PoolSpec(parallel=2, n_ctx=256))
    with pytest.raises(ConfigError, match="is not the loaded model"):
        other.words.watch(trial.id, ["king"])


@pytest.mark.slow
def test_a_recurrent_model_gives_single_tokens_and_refuses_phrases(other: Workbench, tmp_path: Path) -> None:
    load(other, write_mamba(tmp_path / "mamba.gguf"), PoolSpec(parallel=2, n_ctx=256))
    trial = ended(
        other.trials.submit(Draft("bo ba", sampling=Sampling(seed=1), request=Request(max_tokens=6, top_k=5)))
    )
    watching = other.words.watch(trial.id, ["#300", "#301|#300", "zzzz qqqq"], phrases=["zzzz qqqq"])
    assert watching.task is not None
    watching.task.result(60)
    first, both, phrase = watching.lines
    assert first.figures is not None and both.figures is not None
    assert (first.figures.logprob[1:] < both.figures.logprob[1:]).all()
    assert watching.shift == pytest.approx(0, abs=1e-3)
    assert phrase.figures is None and "recurrent" in phrase.error
