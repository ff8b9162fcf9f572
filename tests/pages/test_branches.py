"""Branches on the Prompt lab: what the strip asks for and what the tree does, with the real model and history."""

import json
import math
from typing import Any

import pytest

from engine.errors import ConfigError
from engine.history import TrialLabel
from engine.specs import Request, Sampling
from engine.workbench import Workbench
from engine.workbench.branching import Relative
from engine.workbench.trials import Draft, Trial
from pages.parts import branches, probable_view, prompt_state
from pages.parts.branch_actions import _carry_out
from tests.pages.app import open_page
from tests.waiting import until

DRAFT = Draft("Once upon a time", sampling=Sampling(seed=3), request=Request(max_tokens=8, top_k=20, stages=True))


@pytest.fixture
def trial(bench: Workbench) -> Trial:
    trial = bench.trials.submit(DRAFT)
    trial.job.result(60)
    until(lambda: trial.is_stored, "the trial is not stored")
    return trial


def family_rows(bench: Workbench, trial: Trial) -> list[dict[str, Any]]:
    return [dict(row) for row in branches.rows(trial, bench.branching.family(trial))]


def test_rows_tell_which_branch_is_on_the_screen_and_what_is_forced(bench: Workbench, trial: Trial) -> None:
    branch = bench.trials.branch(trial, 3, [7])
    branch.job.result(60)
    first, old, new = family_rows(bench, branch)
    assert (first["parent"], old["parent"], new["parent"]) == (None, 0, 0)
    assert [row["is_passed"] for row in (first, old, new)] == [True, False, True]
    assert [row["is_open"] for row in (first, old, new)] == [False, False, True]
    assert (old["is_forced"], new["is_forced"], first["num_trials"]) == (False, True, 2)
    logprob = trial.steps[0].logprob
    assert logprob is not None and first["cells"][0] == branches.share(math.exp(logprob))
    assert json.dumps([first, old, new])


def test_a_run_of_the_page_reads_the_family_once(
    bench: Workbench, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.trials.branch(trial, 3, [7]).job.result(60)
    read: list[str] = []
    family = bench.branching.family

    def noting(of: Trial) -> list[Relative]:
        read.append(of.id)
        return family(of)

    monkeypatch.setattr(bench.branching, "family", noting)
    at = open_page("prompt_lab.py", "Prompt lab", trial=trial.id)
    assert read == [trial.id]
    assert at.segmented_control(key="lab_share_scope").options == ["This trial", "All 2 branches"]


@pytest.mark.parametrize("p", [0.0, 1e-9, 0.00123, 0.099, 0.1, 0.5, 1.0])
def test_a_share_keeps_two_digits(p: float) -> None:
    share = branches.share(p)
    assert share.endswith("%") and float(share.replace("\u202f", " ").split()[0].strip("%")) == pytest.approx(
        100 * p, rel=0.06, abs=1e-12
    )


@pytest.mark.parametrize(
    "asked",
    [
        None, 5, "x", [], {}, {"action": "continue"}, {"action": "none", "trial": "x", "step": 0},
        {"action": "continue", "trial": "x" * 65, "step": 0, "id": 1},
        {"action": "continue", "trial": "x", "step": -1, "id": 1},
        {"action": "continue", "trial": "x", "step": 0, "id": 1 << 40},
        {"action": "continue", "trial": "x", "step": 0, "id": 1.5},
        {"action": "text", "trial": "x", "step": 0, "text": "a" * 10_001},
        {"action": "sample", "trial": "x", "step": 0, "num": "8"},
        {"action": "sample", "trial": "x", "step": 0, "num": 8, "more": 1},
        {"action": "ban", "trial": "x", "step": 0, "id": 5},
        {"action": "resample", "trial": "x", "step": 0, "sampling": {"temperature": "1"}},
        {"action": "resample", "trial": "x", "step": 0, "sampling": [1]},
        {"action": "resample", "trial": "x", "step": 0},
    ],
)  # fmt: skip
def test_what_is_not_an_action_is_refused(bench: Workbench, asked: object) -> None:
    with pytest.raises(ConfigError):
        _carry_out(bench, asked)


@pytest.mark.parametrize(
    ("step", "changed", "message"),
    [
        (9, {"temperature": 1.0}, "no token 10"),
        (2, {"temperature": math.nan}, "temperature = nan"),
        (2, {"seed": 4.0}, "seed: cannot be changed"),
    ],
)
def test_parameters_or_a_step_that_cannot_be_are_refused(
    bench: Workbench, trial: Trial, step: int, changed: dict[str, float], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        _carry_out(bench, {"action": "resample", "trial": trial.id, "step": step, "sampling": changed})


def test_a_trial_goes_on_with_other_parameters_and_the_same_random_numbers(
    bench: Workbench, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Trial] = []
    monkeypatch.setattr(prompt_state, "put_on_screen", shown.append)
    again = bench.trials.resample(trial.id, {"temperature": 0}).result
    first = next(i for i, (new, old) in enumerate(zip(again.ids, trial.steps.ids, strict=True)) if new != old)
    asked = {"action": "resample", "trial": trial.id, "step": first, "sampling": {"temperature": 0}}
    _carry_out(bench, json.loads(json.dumps(asked)))
    (branch,) = shown
    until(branch.done, "it does not end")
    assert branch.steps.ids[: first + 1] == [*trial.steps.ids[:first], again.ids[first]]
    assert (branch.draft.sampling.temperature, branch.seed, branch.parent) == (0, trial.seed, trial.id)
    assert len(branch.steps) <= trial.draft.request.max_tokens


@pytest.mark.parametrize("asked", [{"step": 9}, {"id": 4096}, {"id": 1 << 30}])
def test_a_step_or_token_that_is_not_there_is_refused_and_the_pool_goes_on(
    bench: Workbench, trial: Trial, asked: dict[str, int]
) -> None:
    action = {"action": "continue", "trial": trial.id, "step": 2, "id": 5, **asked}
    try:
        _carry_out(bench, action)
    except ConfigError:
        pass
    else:
        newest = bench.trials.in_memory()[-1]
        until(newest.done, "it does not end")
        assert isinstance(newest.error, ConfigError)
    bench.trials.submit(DRAFT).job.result(60)


@pytest.mark.parametrize(
    "asked", [5, {}, {"action": "open", "key": 5}, {"action": "open", "key": "x:1"}, {"action": "drop"}]
)
def test_a_row_that_is_not_there_is_refused(bench: Workbench, trial: Trial, asked: object) -> None:
    with pytest.raises(ConfigError):
        branches._act(bench, trial, asked)
    with pytest.raises(ConfigError):
        probable_view._act(bench, trial, asked)


def test_names_and_stars_are_kept_with_the_trial(bench: Workbench, trial: Trial) -> None:
    bench.trials.branch(trial, 3, [7]).job.result(60)
    until(lambda: len(family_rows(bench, trial)) == 3, "the branch does not come")
    key = next(row["key"] for row in family_rows(bench, trial) if row["is_open"])
    hostile = "<b>**name**</b>\n\u202e"
    branches._act(bench, trial, {"action": "name", "key": key, "name": hostile})
    branches._act(bench, trial, {"action": "star", "key": key, "is_starred": True})
    row = next(row for row in family_rows(bench, trial) if row["is_open"])
    assert row["is_starred"] and row["name"] == "<b>**name**</b>"
    assert bench.history is not None
    stored = next(one for one in bench.history.family(trial.id) if one.id == trial.id)
    assert stored.is_starred and stored.note.startswith("<b>")


def test_the_tree_of_the_most_probable(bench: Workbench, trial: Trial) -> None:
    task = bench.probable.find(trial, 2, num=6, depth=2)
    found = task.result(60)
    tree = probable_view.tree(bench, trial)
    assert tree is not None and sum(row["num_trials"] for row in tree["rows"] if row["parent"] is None) == 6
    best = tree["rows"][0]
    assert best["cells"][0] == branches.share(math.exp(trial.steps[2].top[0].logprob))
    assert not tree["can_mark"] and tree["note"] == ""
    assert len(found.found) == 6
    bench.probable.dismiss()
    assert probable_view.tree(bench, trial) is None


def test_a_candidate_chosen_in_step_mode_replaces_the_step(bench: Workbench) -> None:
    stepped = bench.trials.step(DRAFT, None)
    stepped.job.result(60)
    other = next(one.id for one in stepped.steps[0].top if one.id != stepped.steps.ids[0])
    branch = bench.trials.branch(stepped, 0, [other], num_tokens=0, label=TrialLabel.STEP)
    branch.job.result(60)
    assert branch.steps.ids == [other] and branch.steps[0].is_forced
    after = bench.trials.step(DRAFT, branch)
    after.job.result(60)
    assert len(after.steps) == 2 and after.steps.ids[0] == other
