"""Trials sampled again from their candidates, against what the shipped model generates with those parameters."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import ConfigError
from engine.settings import Settings
from engine.specs import Request, Sampling
from engine.workbench import Workbench
from engine.workbench.resampling import SLIDERS, with_changes
from engine.workbench.trials import Draft, LiveTrial
from tests.waiting import until

NUM_TOKENS = 40
OWN = Sampling(seed=7)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    home = tmp_path_factory.mktemp("home")
    bench = Workbench(Settings.from_environment({"LOGITBENCH_HOME": str(home)}))
    bench.load_default()
    until(lambda: bench.model.engine)
    yield bench
    bench.close()


def run(bench: Workbench, sampling: Sampling = OWN, *, num_tokens: int = NUM_TOKENS, top_k: int = 256) -> LiveTrial:
    request = Request(max_tokens=num_tokens, top_k=top_k, reuse_prefix=False)
    trial = bench.trials.submit(Draft("Once upon a time", sampling=sampling, request=request))
    trial.job.result(60)
    return trial


@pytest.fixture(scope="module")
def trial(bench: Workbench) -> LiveTrial:
    return run(bench)


def test_its_own_parameters_give_the_trial_itself(bench: Workbench, trial: LiveTrial) -> None:
    for shown in (None, 3):
        again = bench.trials.resample(trial.id, {}, shown)
        assert again.result.ids == trial.steps.ids
        assert all(again.result.is_exact)
    assert again.result.num_kept == trial.steps[3].num_kept
    assert again.own == {name: getattr(OWN, name) for name in SLIDERS}
    assert (again.idle, again.num_candidates) == ((), 256)


@pytest.mark.parametrize(
    "changed",
    [
        {"temperature": 0.0}, {"temperature": 0.5}, {"temperature": 1.3}, {"top_k": 3.0}, {"top_k": 200, "min_p": 0.0},
        {"top_p": 0.5}, {"top_p": 1.0}, {"min_p": 0.3}, {"min_p": 0.0, "top_p": 1}, {"repeat_penalty": 1.2},
        {"frequency_penalty": 0.7}, {"presence_penalty": 1.0, "temperature": 1.1}, {"top_k": 0, "top_p": 0.8},
    ],
    ids=str,
)  # fmt: skip
def test_a_real_run_has_the_same_tokens_up_to_the_first_that_differs(
    bench: Workbench, trial: LiveTrial, changed: dict[str, float]
) -> None:
    result = bench.trials.resample(trial.id, changed).result
    own = trial.steps.ids
    first = next((index for index, (new, old) in enumerate(zip(result.ids, own, strict=True)) if new != old), len(own))
    assert all(result.is_exact[: first + 1])
    sampling = with_changes(OWN, changed)
    real = run(bench, sampling).steps.ids
    assert real[:first] == own[:first]
    assert real[first : first + 1] == result.ids[first : first + 1]
    branch = bench.trials.branch(trial, first, (), sampling=sampling)
    branch.job.result(60)
    assert branch.steps.ids[: first + 1] == [*own[:first], *result.ids[first : first + 1]]


def test_these_changes_do_change_something(bench: Workbench, trial: LiveTrial) -> None:
    for changed in ({"temperature": 0.0}, {"temperature": 1.3}, {"min_p": 0.3}, {"repeat_penalty": 1.2}):
        assert bench.trials.resample(trial.id, changed).result.ids != trial.steps.ids


def test_the_distribution_is_that_of_a_real_run_after_the_same_tokens(bench: Workbench, trial: LiveTrial) -> None:
    changed = {"temperature": 1.3, "top_k": 20, "repeat_penalty": 1.1}
    for index in (0, 5, 17):
        result = bench.trials.resample(trial.id, changed, index).result
        branch = bench.trials.branch(trial, index, (), sampling=with_changes(OWN, changed), num_tokens=1)
        branch.job.result(60)
        step = branch.steps[index]
        assert (result.ids[index], result.num_kept) == (step.id, step.num_kept)
        p_final = {one.id: one.p_final for one in step.top}
        found = zip(trial.steps.top_ids[index].tolist(), memoryview(result.p_final).cast("f"), strict=True)
        assert {token: p for token, p in found if p} == pytest.approx(
            {id: p for id, p in p_final.items() if p}, abs=2e-4
        )


def test_flat_chains_are_open_where_the_candidates_do_not_decide(bench: Workbench, trial: LiveTrial) -> None:
    result = bench.trials.resample(trial.id, {"top_k": 0, "top_p": 1, "min_p": 0, "temperature": 1.5}).result
    assert not any(result.is_exact)
    few = run(bench, num_tokens=12, top_k=3)
    assert not all(bench.trials.resample(few.id, {"temperature": 1.5}).result.is_exact)
    assert all(bench.trials.resample(few.id, {"top_k": 3}).result.is_exact)


def test_forced_tokens_of_a_branch_stay(bench: Workbench, trial: LiveTrial) -> None:
    other = trial.steps[4].top[9].id
    branch = bench.trials.branch(trial, 4, (other,))
    branch.job.result(60)
    again = bench.trials.resample(branch.id, {}).result
    assert again.ids == branch.steps.ids and all(again.is_exact)
    assert bench.trials.resample(branch.id, {"temperature": 1.8}, 4).result.ids[4] == other


def test_a_parameter_whose_stage_is_not_in_the_chain_is_idle(bench: Workbench) -> None:
    short = run(bench, replace(OWN, samplers=("top_k", "temperature")), num_tokens=3)
    assert bench.trials.resample(short.id, {}).idle == (
        "top_p", "min_p", "repeat_penalty", "frequency_penalty", "presence_penalty",
    )  # fmt: skip
    blind = run(bench, replace(OWN, penalty_last_n=0), num_tokens=3)
    assert bench.trials.resample(blind.id, {}).idle == ("repeat_penalty", "frequency_penalty", "presence_penalty")


@pytest.mark.parametrize(
    ("sampling", "stage"),
    [
        ({"mirostat": 2}, "mirostat"),
        ({"grammar": "root ::= [a-z ]+"}, "grammar"),
        ({"dry_multiplier": 0.8}, "dry"),
        ({"xtc_probability": 0.5}, "xtc"),
    ],
)
def test_a_chain_that_needs_more_than_candidates_is_refused(
    bench: Workbench, sampling: dict[str, Any], stage: str
) -> None:
    refused = run(bench, replace(OWN, **sampling), num_tokens=3)
    with pytest.raises(ConfigError, match=f"sampled with {stage} cannot be sampled again"):
        bench.trials.resample(refused.id, {})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"temperature": math.nan}, "temperature = nan"),
        ({"temperature": math.inf}, "temperature = inf"),
        ({"temperature": -0.1}, "temperature = -0.1"),
        ({"top_k": 2.5}, "top_k = 2.5"),
        ({"top_k": math.inf}, "top_k = inf"),
        ({"top_k": 1e300}, "top_k = "),
        ({"top_p": 1.01}, "top_p = 1.01"),
        ({"repeat_penalty": 0}, "repeat_penalty = 0"),
        ({"frequency_penalty": -101}, "frequency_penalty = -101"),
        ({"mirostat": 2}, "mirostat: cannot be changed"),
        ({"seed": 3}, "seed: cannot be changed"),
    ],
    ids=str,
)
def test_values_out_of_range_and_other_parameters_are_refused(
    bench: Workbench, trial: LiveTrial, changed: dict[str, float], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        bench.trials.resample(trial.id, changed)


def test_what_is_not_there_is_refused(bench: Workbench, trial: LiveTrial) -> None:
    for id, shown, message in (
        ("nobody", None, "trial that does not exist"),
        (trial.id, NUM_TOKENS, "no such token"),
        (trial.id, -1, "no such token"),
    ):
        with pytest.raises(ConfigError, match=message):
            bench.trials.resample(id, {}, shown)
    with pytest.raises(ConfigError, match="no candidates were recorded"):
        bench.trials.resample(run(bench, num_tokens=2, top_k=0).id, {})
