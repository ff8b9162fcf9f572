"""What a search for settings claims: a verdict only where its final can give one, else the time or quiet it lacks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bench.analysis.summary import summarise
from engine.bench.planning.candidates import DEFAULT, DEFAULT_LABEL
from engine.bench.planning.plan import Plan
from engine.bench.planning.search_time import SearchTime, first_tried, shortened
from engine.bench.running.halving import common_rounds, final_round
from engine.bench.running.tuning import Tuning
from engine.errors import MemoryRefused
from engine.samples import Samples
from engine.stats import FIRST_LOOK
from engine.units import duration
from tests.engine.bench.fakes import LOAD_S, FakeTargetPool
from tests.engine.bench.test_halving import PLAN, candidates, search, speed
from tests.engine.bench.test_summary import run_of
from tests.waiting import Clock

CELLS = candidates()
SHORT = "The time was too short for a verdict: "


def outcome_of(plan: Plan, samples: Samples, **how: Any) -> dict[str, Any]:
    return Tuning(plan, CELLS).outcome(samples, **how)


def num_common(samples: Samples) -> int:
    """Return the most rounds of the final that another setting shares with the default."""
    final = final_round(samples)
    assert final is not None
    judged = samples[samples["round"] >= final]
    others = set(judged["cell"].tolist()) - {DEFAULT}
    return max((len(common_rounds(judged, [DEFAULT, other])) for other in others), default=0)


def stage_of(samples: Samples) -> str:
    """Return what is said of a final with the default."""
    num = len(set(samples["cell"][samples["round"] == final_round(samples)].tolist())) - 1
    against = {0: "alone, as no other setting was measured", 1: "against the best setting"}
    return f"Final: {DEFAULT_LABEL} {against.get(num, f'against the best {num} settings')}"


def simulated_time() -> SearchTime:
    """Return the time of a search on the simulated machine."""
    machine = FakeTargetPool(speed, Clock())
    first = next(number for number in first_tried(PLAN, CELLS) if number != DEFAULT)
    seconds = [max(1.0, machine.seconds(shortened(PLAN, CELLS[number]))) for number in (DEFAULT, first)]
    return SearchTime(LOAD_S + 3 * seconds[0], LOAD_S + 3 * seconds[1], sum(seconds))


@pytest.mark.parametrize("seed", range(24))
def test_a_search_claims_a_verdict_only_with_the_rounds_of_one(seed: int) -> None:
    budget_s = float(np.random.default_rng(seed).uniform(1, 90))
    plan = replace(PLAN, budget_s=budget_s)
    samples, strategy, _targets, _reporter = search(plan)
    outcome = outcome_of(plan, samples)
    common, tried = num_common(samples), len(set(samples["cell"].tolist()))
    said = outcome["sentence"]
    assert said.startswith(SHORT) is (common < FIRST_LOOK) is (outcome["word"] == "not enough data")
    assert strategy.says == stage_of(samples)
    if common >= FIRST_LOOK:
        assert (outcome["word"], outcome["budget_s"]) == ("faster", None)
        return
    assert outcome["winner"] == DEFAULT and outcome["gain"] is None
    assert f"{tried} of {len(CELLS)} settings tried" in said
    assert f"Give it {duration(outcome['budget_s'])}." in said and outcome["budget_s"] >= 2 * budget_s
    assert (f"{common} of {FIRST_LOOK} rounds" in said) is (common > 0)
    assert "Nothing tried" not in said and "more round" not in said


@pytest.mark.parametrize("budget_s", [1.0, 3.0, 8.0, 15.0, 25.0])
def test_the_time_that_is_asked_for_gives_a_verdict(budget_s: float) -> None:
    asked = []
    while True:
        plan = replace(PLAN, budget_s=budget_s)
        samples, *_ = search(plan, noise=0.02)
        found = outcome_of(plan, samples)
        if found["word"] == "faster":
            break
        budget_s = found["budget_s"]
        asked.append(budget_s)
    assert 1 <= len(asked) <= 2


@pytest.mark.parametrize("seed", range(12))
def test_what_the_preview_promises_the_search_keeps(seed: int) -> None:
    budget_s = float(np.random.default_rng(seed).uniform(5, 120))
    plan, time = replace(PLAN, budget_s=budget_s), simulated_time()
    if time.rounds(budget_s) >= FIRST_LOOK:
        samples, *_ = search(plan)
        assert outcome_of(plan, samples)["word"] == "faster"
    assert time.rounds(time.budget_s(FIRST_LOOK)) >= FIRST_LOOK


@given(default_s=st.floats(0.1, 500), other_s=st.floats(0.1, 500), round_s=st.floats(0.1, 500), num=st.integers(1, 20))
def test_the_budget_of_some_rounds_has_them(default_s: float, other_s: float, round_s: float, num: int) -> None:
    time = SearchTime(default_s, other_s, round_s)
    budget_s = time.budget_s(num)
    assert time.rounds(budget_s) >= num
    assert time.rounds(budget_s / 10) <= time.rounds(budget_s)
    assert budget_s % 30 == 0


def test_a_search_that_is_stopped_asks_for_no_time() -> None:
    whole, *_ = search()
    final = final_round(whole)
    assert final is not None
    for end in (1, 4, int(np.sum(whole["round"] < final)) + 3):
        part = whole[:end].copy()
        part["is_replaced"] &= final_round(part) is not None and bool((part["round"] >= final).any())
        found = outcome_of(PLAN, part, is_over=False)
        assert found["sentence"].startswith("So far: ") and found["budget_s"] is None
        assert SHORT not in found["sentence"] and "a search of" not in found["sentence"]
    assert f"Only {DEFAULT_LABEL} was measured" in outcome_of(PLAN, whole[:1], is_over=False)["sentence"]


def test_where_everything_else_fails_it_is_not_the_time() -> None:
    errors = {(one.number, 1): MemoryRefused("needs 9 TB") for one in CELLS[1:]}
    samples, strategy, *_ = search(errors=errors)
    found = outcome_of(PLAN, samples, out=[one.number for one in CELLS[1:]])
    assert f"No other setting can run beside {DEFAULT_LABEL}: keep it, at " in found["sentence"]
    assert found["budget_s"] is None
    assert strategy.says == f"Final: {DEFAULT_LABEL} alone, as no other setting was measured"


def test_where_all_others_fall_behind_at_once_it_is_not_the_time() -> None:
    samples, *_ = search(rate=lambda one: 100.0 if one.number == DEFAULT else 50.0)
    found = outcome_of(PLAN, samples)
    assert found["sentence"].startswith(f"Nothing tried comes near {DEFAULT_LABEL} in short samples: keep it, at ")
    assert found["budget_s"] is None


def test_the_least_memory_is_not_recommended_on_too_few_rounds() -> None:
    plan = replace(PLAN, goal="memory", budget_s=12.0)
    samples, *_ = search(plan, rate=lambda one: 100.0 + one.number / 100)
    found = outcome_of(plan, samples)
    assert found["sentence"].startswith(SHORT) and found["winner"] == DEFAULT


@given(
    contended=st.sampled_from([0.0, 0.3, 0.7, 1.0]), gain=st.sampled_from([1.0, 1.02, 1.05]), seed=st.integers(0, 99)
)
@settings(max_examples=24, deadline=None)
def test_a_disturbed_search_asks_for_a_quiet_machine_not_for_rounds(contended: float, gain: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    flags: Any = {place: "contended" for place in range(1, 2_000) if random.random() < contended}
    plan = replace(PLAN, budget_s=float(random.choice([10.0, 60.0, 300.0])))
    samples, *_ = search(
        plan, rate=lambda one: 100.0 * (gain if one.number % 2 else 1), noise=0.1, seed=seed, flags=flags
    )
    found = outcome_of(plan, samples)
    summary = summarise(
        run_of(samples, [one.label for one in CELLS], found), main_metric="tokens_per_s", baseline=DEFAULT
    )
    said = found["sentence"]
    assert summary.sentence == said and "more round" not in said
    is_open = found["word"] == "not enough data"
    if summary.disturbance.is_mostly:
        assert found["more_rounds"] == 0 and "more round" not in summary.to_markdown()
        assert ("quiet machine" in said) is (is_open and (found["leader"] != DEFAULT or SHORT in said))
    else:
        assert "quiet machine" not in said
        assert (found["budget_s"] is not None) is (f"{duration(found['budget_s'] or 0)}" in said and is_open)


def test_without_the_default_the_final_does_not_name_it() -> None:
    _samples, strategy, *_ = search(errors={(DEFAULT, 1): MemoryRefused("needs 9 TB")})
    assert strategy.says.startswith("Final: the best ") and DEFAULT_LABEL not in strategy.says
