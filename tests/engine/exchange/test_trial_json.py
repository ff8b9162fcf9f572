"""Trials as JSON: what is exported arrives unchanged, and what is hostile not at all."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from engine import Pool, Sampling
from engine.errors import EngineError
from engine.exchange.importer import Importer
from engine.history import EngineIdentity, History, TrialRecord
from engine.history.export import family_to_json, to_json
from engine.results import Completion, FinishReason
from engine.specs import MAX_RECORDED, Request
from engine.step_parts import FORCED, RESAMPLED, SHARED_MOMENT
from tests.engine.history.trial_maker import NASTY, VOCABULARY, make_steps, make_trial, uuid7, with_stages

NUM_DRAWN = 12
REASONS: tuple[FinishReason, ...] = get_args(FinishReason)


@pytest.fixture(scope="module")
def importer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Importer]:
    with Importer(tmp_path_factory.mktemp("home")) as importer:
        yield importer


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History.open(tmp_path / "history.duckdb") as opened:
        yield opened


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[History]:
    """The empty history of somebody else."""
    with History.open(tmp_path / "elsewhere.duckdb") as opened:
        yield opened


def drawn(seed: int) -> TrialRecord:
    """Return a trial with a bit of everything, other for each seed."""
    random = np.random.default_rng(seed)
    k = int(random.choice([0, 1, 8, 50]))
    steps = make_steps(int(random.integers(0, 12)), k, seed=seed)
    records = steps.records
    is_odd = random.random(len(steps)) < 0.4
    records["id"][is_odd] = random.choice([0xF0, 0x9F, 0xFF, 256, 257], is_odd.sum())
    records["flags"] |= np.where(random.random(len(steps)) < 0.3, FORCED, 0)
    records["flags"] |= np.where(random.random(len(steps)) < 0.2, RESAMPLED, 0)
    records["flags"] |= np.where(random.random(len(steps)) < 0.2, SHARED_MOMENT, 0)
    for figure, missing in (("rank", 0), ("entropy", np.nan)):  # as servers leave them out
        records[figure][random.random(len(steps)) < 0.1] = missing
    records["draw"][records["flags"] & FORCED != 0] = np.nan
    records["logprob"][random.random(len(steps)) < 0.1] = -np.inf
    prompt = make_steps(int(random.integers(0, 5)), k if random.random() < 0.5 else 0, seed=seed + 1, is_prompt=True)
    for figure in ("p_final", "draw"):
        prompt.records[figure] = np.nan
    prompt.top_p_final[1:] = np.nan  # as the engine gives it: the first token has no figures, the others are not drawn
    prompt.top_p_final[:1] = 0
    prompt.records["flags"][:1] = 0
    trial = make_trial(
        0,
        prompt=NASTY,
        messages=({"role": "user", "content": NASTY},) * int(random.integers(0, 3)),
        sampling=Sampling(logit_bias=((5, -np.inf), (7, 0.1)), temperature=float(random.random())),
        label=str(random.choice(["", "continue", "<script>alert(1)</script>"])),
        parent=uuid7() if random.random() < 0.5 else None,
        unknown_fields=("logprobs\u202e",) * int(random.integers(0, 2)),
        engine=EngineIdentity(NASTY, "", "openai", "unknown") if random.random() < 0.5 else None,
        client=str(random.choice(["", NASTY])),
        request=Request(max_tokens=20, top_k=k, stop=("\n", "</s>")),
    )
    completion = replace(
        trial.completion, steps=steps, prompt_steps=prompt, prompt_ids=tuple(prompt.ids), text=steps.text,
        finish_reason=REASONS[random.integers(len(REASONS))],
    )  # fmt: skip
    whole = replace(trial, completion=completion)
    return with_stages(whole, seed=seed) if k and len(steps) and random.random() < 0.6 else whole


def kept(history: History, *trials: TrialRecord) -> list[TrialRecord]:
    """Return the trials as the history gives them back."""
    for trial in trials:
        history.record(trial).result(60)
    found = [history.trial(trial.id) for trial in trials]
    return [trial for trial in found if trial is not None]


def all_of(history: History) -> list[TrialRecord]:
    return [trial for one in reversed(history.recent()) if (trial := history.trial(one.id))]


@pytest.mark.parametrize("seed", range(NUM_DRAWN))
def test_a_trial_arrives_as_it_was(importer: Importer, history: History, elsewhere: History, seed: int) -> None:
    (trial,) = kept(history, drawn(seed))
    exported = to_json(trial)
    taken = importer.take_in(elsewhere, "trial.json", exported)
    assert (taken.kind, taken.trial_ids, taken.sentence) == ("trial", (trial.id,), "1 trial imported.")
    (arrived,) = all_of(elsewhere)
    assert to_json(arrived) == exported
    assert arrived.completion.steps == trial.completion.steps
    assert arrived.completion.prompt_steps == trial.completion.prompt_steps
    assert replace(arrived, model=trial.model) == trial


def test_the_draws_have_a_bit_of_everything() -> None:
    trials = [drawn(seed) for seed in range(NUM_DRAWN)]
    steps = [step for trial in trials for step in trial.completion.steps]
    assert {step.is_forced for step in steps} == {step.is_resampled for step in steps} == {True, False}
    assert {bool(step.stages) for step in steps} == {step.draw is None for step in steps} == {True, False}
    assert {0xF0, 257} <= {step.id for step in steps}
    assert any(len(trial.completion.prompt_steps) and trial.completion.prompt_steps.k for trial in trials)
    assert {bool(trial.messages) for trial in trials} == {bool(trial.parent) for trial in trials} == {True, False}


def test_what_the_model_gave_arrives_as_it_was(
    importer: Importer, history: History, elsewhere: History, pool: Pool
) -> None:
    sampling = Sampling(seed=3, top_p=0.9, repeat_penalty=1.1, grammar="root ::= [a-zA-Z ]+")
    first = pool.submit("The king had three sons", sampling, max_tokens=12, top_k=50, stages=True).result(60)
    ids = [*first.prompt_ids, *first.ids[:5], first.steps[5].top[1].id]
    branch = pool.submit(
        ids, sampling, max_tokens=6, top_k=50, stages=True, generated=5, forced=1, prompt_logprobs=True
    ).result(60)
    given = made_of(first, sampling)  # as it is before it is stored
    (root, child) = kept(history, given, replace(made_of(branch, sampling), parent=given.id))
    exported = family_to_json([root, child])
    taken = importer.take_in(elsewhere, "family.json", exported)
    assert (taken.kind, taken.sentence) == ("trials", "2 trials imported.")
    arrived = all_of(elsewhere)
    assert family_to_json(arrived) == exported
    for one, other in zip(arrived, (root, child), strict=True):
        assert one.completion == other.completion
    assert arrived[1].completion.steps[0].is_forced
    assert arrived[0].completion.steps[0].stages
    assert any(step.forbidden for step in arrived[0].completion.steps)
    assert importer.take_in(history, "again.json", family_to_json([given, child])).sentence == "2 were already present."


def made_of(completion: Completion, sampling: Sampling) -> TrialRecord:
    """Return a trial with this completion."""
    request = Request(max_tokens=len(completion.steps), top_k=50, stages=True)
    id = uuid7()
    return replace(make_trial(0, id=id), sampling=sampling, request=request, completion=replace(completion, id=id))


def test_the_model_s_folder_stays_behind(history: History) -> None:
    trial = make_trial(1)
    trial = replace(trial, model=replace(trial.model, path="/home/someone/secret/story.gguf"))
    assert json.loads(to_json(trial))["model"]["path"] == "story.gguf"
    assert b"someone" not in family_to_json([trial])


# ids that are there already


def test_the_same_trial_twice_is_one(importer: Importer, history: History) -> None:
    trials = kept(history, with_stages(make_trial(5)), make_trial(3, seed=1))
    for data in (to_json(trials[0]), family_to_json(trials)):
        assert "already present" in importer.take_in(history, "again.json", data).sentence
    history.delete(trials[0].id)
    assert importer.take_in(history, "again.json", to_json(trials[0])).sentence == "1 trial imported."
    assert {trial.id for trial in all_of(history)} == {trial.id for trial in trials}


@pytest.mark.parametrize(
    "change",
    [
        lambda trial: replace(trial, prompt="another prompt"),
        lambda trial: replace(trial, completion=replace(trial.completion, seed=1)),
        lambda trial: replace(trial, completion=replace(trial.completion, steps=make_steps(5, seed=9))),
        lambda trial: replace(trial, completion=replace(trial.completion, steps=make_steps(4))),
        lambda trial: replace(trial, completion=replace(trial.completion, prompt_steps=make_steps(1, is_prompt=True))),
    ],
    ids=["prompt", "seed", "steps", "fewer steps", "prompt steps"],
)
def test_another_trial_of_the_same_id_gets_a_new_one(
    importer: Importer, history: History, change: Callable[[TrialRecord], TrialRecord]
) -> None:
    root, child = make_trial(5), make_trial(3, seed=1)
    child = replace(child, parent=root.id)
    (stored,) = kept(history, root)
    taken = importer.take_in(history, "family.json", family_to_json([change(root), child]))
    sentence = "2 trials imported; 1 of them under a new id, as its id belongs to another trial here."
    assert taken.sentence == sentence
    new = next(id for id in taken.trial_ids if id != child.id)
    assert new != root.id
    arrived = history.trial(new)
    assert arrived is not None
    assert replace(arrived, id=root.id).completion.steps == change(root).completion.steps
    assert history.trial(root.id) == stored
    assert {trial.id: trial.parent for trial in all_of(history)} == {root.id: None, new: None, child.id: new}

    again = importer.take_in(history, "family.json", family_to_json([change(root), child]))
    assert (again.sentence, set(again.trial_ids)) == ("2 were already present.", {new, child.id})
    assert len(all_of(history)) == 3


# hostile files

HOSTILE = "<script>alert(1)</script><!-- ' \" ` \u202eevil\u2066\u2028 \x1b[31m"


def test_markup_in_every_text_is_only_text(importer: Importer, history: History) -> None:
    trial = replace(
        make_trial(2), prompt=HOSTILE, label=HOSTILE, messages=({HOSTILE: HOSTILE},), versions={HOSTILE: HOSTILE},
        unknown_fields=(HOSTILE,),
    )  # fmt: skip
    trial = replace(
        trial,
        model=replace(trial.model, name=HOSTILE, path=HOSTILE.replace("/", ""), hash=HOSTILE, quantisation=HOSTILE),
        completion=replace(trial.completion, text=HOSTILE),
    )
    exported = to_json(trial)
    assert importer.recognise("hostile.json", exported).kind == "trial"
    importer.take_in(history, "hostile.json", exported)
    (arrived,) = all_of(history)
    assert to_json(arrived) == exported


def changed(change: Callable[[Any], object]) -> bytes:
    """Return the JSON of a family of two trials with stages, changed by `change` in place."""
    first = with_stages(make_trial(3))
    second = replace(with_stages(make_trial(2, seed=1)), parent=first.id)
    values = json.loads(family_to_json([first, second]))
    change(values)
    return json.dumps(values).encode()


def step_of(values: Any) -> Any:
    return values["trials"][0]["completion"]["steps"][1]


def set_in(place: Callable[[Any], Any], name: Any, value: Any) -> bytes:
    return changed(lambda values: place(values).__setitem__(name, value))


def trial_of(values: Any) -> Any:
    return values["trials"][0]


def tokenizer_of(values: Any) -> Any:
    return next(iter(values["tokenizers"].values()))


def candidate_of(values: Any) -> Any:
    return step_of(values)["top"][2]


def stage_of(values: Any) -> Any:
    return step_of(values)["stages"][0]


def head(format: str = "logitbench-trial") -> bytes:
    return b'{"format": "%s", "version": 1, "sampling": ' % format.encode()


MANY = len(VOCABULARY)
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "10 MB of nested arrays": (lambda: head() + b"[" * 10_000_000, "nested too deeply"),
    "10 MB of nested objects": (lambda: head("logitbench-trials") + b'{"a":' * 2_000_000, "nested too deeply"),
    "half a file": (lambda: to_json(make_trial(3))[:5_000], "truncated"),
    "a later version": (lambda: set_in(lambda values: values, "version", 2), "version 2; this version reads version 1"),
    "a field of others": (lambda: set_in(trial_of, "onload", "x"), "unknown field `onload`"),
    "no id": (lambda: changed(lambda values: trial_of(values).pop("id")), "missing required field `id`"),
    "an id that is none": (lambda: set_in(trial_of, "id", HOSTILE), "must be a UUID"),
    "a time without a zone": (lambda: set_in(trial_of, "created_at", "2026-01-01T00:00:00"), "must have a time zone"),
    "a time in another age": (lambda: set_in(trial_of, "created_at", "9999-01-01T00:00:00Z"), "must be in the years"),
    "two trials with one id": (
        lambda: changed(lambda values: values["trials"][1].update(id=trial_of(values)["id"])),
        "two trials have the same id",
    ),
    "a trial that is its own parent": (
        lambda: changed(lambda values: trial_of(values).update(parent=trial_of(values)["id"])),
        "descends from itself",
    ),
    "parents in a circle": (
        lambda: changed(lambda values: trial_of(values).update(parent=values["trials"][1]["id"])),
        "descends from itself",
    ),
    "too many trials": (
        lambda: changed(lambda values: values.update(trials=[trial_of(values)] * 1_001)),
        "Expected `array` of length <= 1000",
    ),
    "a token outside the vocabulary": (lambda: set_in(step_of, "id", MANY), f"token {MANY:,} is outside"),
    "a candidate outside the vocabulary": (lambda: set_in(candidate_of, "id", MANY), f"token {MANY:,} is outside"),
    "a prompt outside the vocabulary": (
        lambda: changed(lambda values: trial_of(values)["completion"].update(prompt_ids=[1, MANY])),
        f"token {MANY:,} is outside",
    ),
    "a negative token": (lambda: set_in(step_of, "id", -1), "Expected `int` >= 0"),
    "a negative count": (lambda: set_in(step_of, "num_kept", -5), "Expected `int` >= 0"),
    "a negative stage": (lambda: set_in(stage_of, "kept", -1), "Expected `int` >= 0"),
    "more probability than there is": (lambda: set_in(stage_of, "mass", 1.5), "stage_mass is no probability"),
    "a negative probability": (lambda: set_in(candidate_of, "p_final", -0.5), "top_p_final has an invalid value"),
    "an infinite figure": (lambda: set_in(step_of, "entropy", "-inf"), "entropy is infinite"),
    "a number beyond all": (lambda: set_in(step_of, "logprob", 1e300), "Expected `float` <= "),
    "an integer of 5,000 digits": (
        lambda: to_json(make_trial(1)).replace(b'"seed": 4294967294', b'"seed": ' + b"9" * 5_000),
        "Expected `int` <= 4294967295|out of range",
    ),
    "a number with a giant exponent": (
        lambda: to_json(make_trial(1)).replace(b'"entropy":', b'"entropy":1e999999,"x":'), "out of range|unknown field"
    ),
    "NaN": (lambda: to_json(make_trial(1)).replace(b'"entropy":', b'"entropy":NaN,"x":'), "malformed"),
    "other bytes than its tokenizer's": (
        lambda: set_in(candidate_of, "bytes", list(HOSTILE.encode())), "has other bytes than its tokenizer says"
    ),
    "bytes that are none": (lambda: set_in(step_of, "bytes", [256]), "Expected `int` <= 255"),
    "too many candidates": (
        lambda: changed(lambda values: step_of(values).update(top=[candidate_of(values)] * (MAX_RECORDED + 1))),
        f"Expected `array` of length <= {MAX_RECORDED}",
    ),
    "a candidate twice in a step with stages": (
        lambda: changed(lambda values: step_of(values)["top"].append(candidate_of(values))), "cut its own candidates"
    ),
    "a stage of another sampling": (lambda: set_in(stage_of, "stage", HOSTILE), "not those of its sampling"),
    "a stage that cuts what is not there": (lambda: set_in(stage_of, "cut", [MANY - 1]), "cut its own candidates"),
    "a forbidden token that is no candidate": (
        lambda: set_in(step_of, "forbidden", [MANY - 1]), "forbidden tokens of a step are not among its candidates"
    ),
    "a forbidden candidate without stages": (
        lambda: changed(lambda values: [step.update(stages=[]) for step in trial_of(values)["completion"]["steps"]]),
        "forbidden candidates without stages",
    ),
    "steps with and without stages": (
        lambda: changed(lambda values: step_of(values).update(stages=[], forbidden=[])),
        "only some of its steps have stages",
    ),
    "stages that were not asked for": (
        lambda: changed(lambda values: trial_of(values)["request"].update(stages=False)), "its request is for none"
    ),
    "a parameter of others": (
        lambda: changed(lambda values: trial_of(values)["sampling"].update(temprature=1)), "temprature"
    ),
    "a parameter out of range": (
        lambda: changed(lambda values: trial_of(values)["sampling"].update(top_k=10**30)), "top_k"
    ),
    "a tokenizer under another's hash": (
        lambda: changed(lambda values: tokenizer_of(values)["names"].update({"257": HOSTILE})),
        "has other content than its hash says",
    ),
    "a tokenizer with fewer kinds": (lambda: set_in(tokenizer_of, "kinds", "AAAA"), "pieces but 3 kinds"),
    "no tokenizer": (lambda: changed(lambda values: values["tokenizers"].clear()), "the tokenizer of .* is missing"),
    "half a character": (
        lambda: to_json(make_trial(1)).replace(b'"Once upon a time"', b'"\\ud800"'), "surrogate|malformed"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_hostile_file_is_refused_whole(importer: Importer, history: History, what: str) -> None:
    make, reason = REFUSED[what]
    data = make()
    for act in (importer.recognise, lambda name, data: importer.take_in(history, name, data)):
        with pytest.raises(EngineError, match=reason):
            act("hostile.json", data)
    assert history.recent() == []
