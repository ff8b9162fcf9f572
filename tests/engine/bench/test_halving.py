"""Search for the best settings on a simulated machine whose optimum is known."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from engine.bench.planning.candidates import DEFAULT
from engine.bench.planning.grid import Grid
from engine.bench.planning.plan import Cell, Plan
from engine.bench.planning.search_time import MOST_COARSE, SHORT_TOKENS
from engine.bench.running.effects import effects
from engine.bench.running.halving import OVERRUN, Halving, final_round
from engine.bench.running.runner import Runner
from engine.bench.running.tuning import FLAT, Tuning
from engine.errors import MemoryRefused
from engine.samples import Samples, make_sample, no_samples
from engine.stats import FIRST_LOOK
from tests.engine.bench.fakes import FakeTargetPool, Kept, cell
from tests.waiting import Clock

SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128)
PLAN = Plan(
    question="settings",
    model="none.gguf",
    axes={"layout": ("1x2", "2x1"), "parallel": SEQUENCES, "share_weights": (False, True)},
    workload={"num_prompt": 8, "num_generated": 32},
    budget_s=300,
)
# Modelled on a 1.1 B model on two cores: tokens per second by sequences, with repacked and with shared weights.
REPACKED = (57, 75, 85, 92, 95, 108, 120, 125, 126)
SHARED = (45, 70, 85, 98, 106, 136, 168, 180, 182)


def candidates() -> list[Cell]:
    default = cell(DEFAULT, layout="1x2", parallel=1, share_weights=False)
    grid = itertools.product(("1x2", "2x1"), SEQUENCES, (False, True))
    others = [choice for choice in grid if choice != ("1x2", 1, False)]
    made = [
        cell(number, layout=layout, parallel=parallel, share_weights=shared)
        for number, (layout, parallel, shared) in enumerate(others, 1)
    ]
    return [default, *made]


def speed(of: Cell) -> float:
    curve = SHARED if of.pool.share_weights else REPACKED
    streams = of.pool.parallel * of.pool.instances
    return float(np.interp(math.log2(streams), range(len(curve)), curve)) * (0.97 if of.pool.instances > 1 else 1)


def search(
    plan: Plan = PLAN,
    made: Sequence[Cell] | None = None,
    before: Samples | None = None,
    rate: Callable[[Cell], float] = speed,
    **options: object,
) -> tuple[Samples, Halving, FakeTargetPool, Kept]:
    chosen = made or candidates()
    clock, reporter = Clock(), Kept()
    targets = FakeTargetPool(rate, clock, **options)  # type: ignore[arg-type]
    given = no_samples() if before is None else before
    strategy = Tuning(plan, chosen).strategy(given, clock=clock)
    reporter.samples = given.copy()
    runner = Runner(plan, chosen, targets, reporter, strategy=strategy, samples=given, clock=clock)
    assert runner.run() == "done"
    return reporter.samples, strategy, targets, reporter


@pytest.mark.parametrize("seed", range(8))
def test_five_minutes_find_a_setting_within_five_percent_of_the_best_despite_noise(seed: int) -> None:
    chosen = candidates()
    samples, _strategy, targets, _reporter = search(noise=0.07, seed=seed)
    outcome = Tuning(PLAN, chosen).outcome(samples)
    assert speed(chosen[outcome["winner"]]) >= 0.95 * max(map(speed, chosen))
    assert outcome["word"] == "faster"
    true_gain = speed(chosen[outcome["winner"]]) / speed(chosen[DEFAULT])
    assert true_gain > 2.5
    assert outcome["gain"]["value"] == pytest.approx(true_gain, rel=0.1)
    assert outcome["gain"]["low"] < outcome["gain"]["value"] < outcome["gain"]["high"]
    assert targets.clock.now - Clock().now <= (1 + OVERRUN) * PLAN.budget_s


def test_without_noise_the_answer_is_exact_and_says_what_to_do() -> None:
    chosen = candidates()
    samples, _strategy, _targets, _reporter = search()
    outcome = Tuning(PLAN, chosen).outcome(samples)
    best = max(chosen, key=speed)
    assert speed(chosen[outcome["winner"]]) >= (1 - FLAT) * speed(best)
    assert outcome["pool"] == chosen[outcome["winner"]].pool.to_dict()
    assert set(outcome["flat"]) >= {outcome["winner"]}
    assert outcome["num_tried"] < outcome["num_cells"] == len(chosen)
    assert chosen[outcome["winner"]].label in outcome["sentence"]
    assert "times" in outcome["sentence"] and "llama.cpp's default" in outcome["sentence"]


def test_the_default_is_in_every_round_and_the_final_stands_alone() -> None:
    samples, strategy, _targets, _reporter = search(noise=0.07)
    final = final_round(samples)
    assert final is not None and final > 0
    rounds = samples["round"]
    assert set(rounds[samples["cell"] == DEFAULT]) == set(range(rounds.max() + 1))
    finalists = set(samples["cell"][rounds == final].tolist())
    assert DEFAULT in finalists
    is_old = (rounds < final) & np.isin(samples["cell"], list(finalists))
    assert samples["is_replaced"][is_old].all()
    assert not samples["is_replaced"][~is_old].any()
    for number in range(final, rounds.max() + 1):
        assert set(samples["cell"][rounds == number].tolist()) == finalists
    assert rounds.max() - final + 1 >= FIRST_LOOK
    assert strategy.says.startswith("Final")


def test_early_samples_are_short_and_those_of_the_final_as_long_as_time_allows() -> None:
    _samples, _strategy, targets, _reporter = search(plan=PLAN, made=candidates()[:9])
    asked = {workload.num_generated for _cell, workload in targets.targets}
    assert min(asked) == SHORT_TOKENS
    assert SHORT_TOKENS < max(asked) <= 32


def test_a_short_budget_still_ends_with_a_final_in_time() -> None:
    chosen = candidates()
    samples, _strategy, targets, _reporter = search(
        plan=Plan.from_dict({**PLAN.to_dict(), "budget_s": 100.0}), noise=0.07
    )
    outcome = Tuning(PLAN, chosen).outcome(samples)
    assert outcome["word"] == "faster"
    assert outcome["num_tried"] <= MOST_COARSE + 1
    assert targets.clock.now - Clock().now < 130


def test_a_disturbed_sample_is_taken_once_more_before_the_final() -> None:
    samples, _strategy, targets, _reporter = search(flags={3: "contended"})
    third, fourth = samples[2], samples[3]
    assert third["is_replaced"] and not fourth["is_replaced"]
    assert (third["cell"], third["round"]) == (fourth["cell"], fourth["round"])
    assert targets.asked[2] == targets.asked[3]


def test_settings_that_fail_are_left_out() -> None:
    chosen = candidates()
    free, _strategy, _targets, _reporter = search()
    best = Tuning(PLAN, chosen).outcome(free)["winner"]
    samples, _strategy, targets, reporter = search(errors={(best, 1): MemoryRefused("needs 9 TB")})
    assert targets.dropped == [best]
    assert best not in samples["cell"]
    assert [record.status for record in reporter.cells if record.number == best] == ["failed"]
    assert Tuning(PLAN, chosen).outcome(samples)["winner"] not in (best, DEFAULT)


def test_a_search_goes_on_where_it_was_stopped() -> None:
    whole, _strategy, _targets, _reporter = search()
    final = final_round(whole)
    assert final is not None
    for end in (5, int(np.sum(whole["round"] < final)) + 4):
        part = whole[:end].copy()
        if final_round(part) is None and (part["round"] >= final).sum() == 0:
            part["is_replaced"] = False
        both, _strategy, _targets, _reporter = search(before=part)
        assert both["position"].tolist() == list(range(len(both)))
        pairs = list(zip(both["cell"].tolist(), both["round"].tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)
        found = Tuning(PLAN, candidates()).outcome(both)["winner"]
        assert speed(candidates()[found]) >= 0.95 * max(map(speed, candidates()))


def test_least_memory_is_chosen_among_those_fast_enough() -> None:
    def saturating(of: Cell) -> float:
        streams = of.pool.instances * of.pool.parallel
        return 10.0 * min(16, streams) * (1.01 if streams > 16 else 1.0)

    chosen = candidates()
    plan = Plan.from_dict({**PLAN.to_dict(), "goal": "memory"})
    samples, _strategy, _targets, _reporter = search(plan=plan, rate=saturating)
    outcome = Tuning(plan, chosen).outcome(samples)
    winner = chosen[outcome["winner"]]
    assert winner.pool.instances * winner.pool.parallel == 16
    assert "MB" in outcome["sentence"]


def test_where_nothing_is_better_the_default_stays() -> None:
    chosen = [cell(number, layout="1x1", parallel=1 << number) for number in range(4)]
    clock, reporter = Clock(), Kept()
    targets = FakeTargetPool(lambda one: 100.0 if one.number == DEFAULT else 99.0, clock)
    plan = Plan(question="settings", model="none.gguf", axes={"parallel": (1, 2, 4, 8)}, budget_s=120)
    tuning = Tuning(plan, chosen)
    Runner(plan, chosen, targets, reporter, strategy=tuning.strategy(clock=clock), clock=clock).run()
    outcome = tuning.outcome(reporter.samples)
    assert outcome["winner"] == DEFAULT
    assert outcome["gain"] is None
    assert set(outcome["flat"]) == {0, 1, 2, 3}
    assert "keep it" in outcome["sentence"]


def test_without_the_default_the_best_is_still_named() -> None:
    samples, _strategy, _targets, _reporter = search(errors={(DEFAULT, 1): MemoryRefused("needs 9 TB")})
    outcome = Tuning(PLAN, candidates()).outcome(samples)
    assert outcome["winner"] != DEFAULT
    assert outcome["gain"] is None
    assert "default could not be measured" in outcome["sentence"]


def test_before_the_final_the_answer_is_preliminary() -> None:
    whole, _strategy, _targets, _reporter = search()
    outcome = Tuning(PLAN, candidates()).outcome(whole[:4])
    assert outcome["sentence"].startswith("So far: ")
    assert outcome["winner"] == DEFAULT
    assert outcome["word"] == "not enough data" and outcome["more_rounds"] > 0
    assert "keep the default" in outcome["sentence"]


def test_nothing_measured_is_said_so() -> None:
    assert Tuning(PLAN, candidates()).outcome(no_samples()) == {"sentence": "No settings measured yet."}


def test_effects_separate_cells_from_rounds_they_did_not_share() -> None:
    machine = {0: 1.0, 1: 0.5, 2: 2.0}
    rate = {0: 10.0, 1: 20.0, 2: 30.0}
    seen = [(0, 0), (1, 0), (0, 1), (2, 1), (1, 2), (2, 2)]
    samples = np.concatenate(
        [make_sample(cell=one, round=at, tokens_per_s=rate[one] * machine[at]) for one, at in seen]
    )
    found = effects(samples, "tokens_per_s")
    assert found.ranked() == [2, 1, 0]
    assert found.behind(1) == pytest.approx(1 / 3)
    assert found.behind(0) == pytest.approx(2 / 3)
    assert found.noise == pytest.approx(0, abs=1e-9)


def test_effects_of_times_are_better_when_smaller_and_survive_a_stumble() -> None:
    random = np.random.default_rng(1)
    samples = np.concatenate(
        [
            make_sample(cell=one, round=at, ttft_s=(1 + 0.1 * one) * math.exp(0.02 * random.standard_normal()))
            for at in range(8)
            for one in range(3)
        ]
    )
    samples["ttft_s"][0] *= 5
    found = effects(samples, "ttft_s")
    assert found.ranked() == [0, 1, 2]
    assert found.behind(1) == pytest.approx(1 - 1 / 1.1, abs=0.03)
    assert found.noise == pytest.approx(0.02, rel=0.5)


def test_a_grid_is_sampled_coarsely_and_knows_its_neighbours() -> None:
    chosen = candidates()
    grid = Grid(chosen, PLAN.axes)
    coarse = grid.coarse(MOST_COARSE)
    assert len(coarse) == 4
    assert {chosen[number].pool.parallel for number in coarse} == {32}
    assert {chosen[number].settings["layout"] for number in coarse} == {"1x2", "2x1"}
    start = next(one for one in chosen if one.settings == {"layout": "1x2", "parallel": 8, "share_weights": True})
    beside = [chosen[number].settings for number in grid.neighbours(start.number)]
    assert {(each["layout"], each["parallel"], each["share_weights"]) for each in beside} == {
        ("2x1", 8, True),
        ("1x2", 4, True),
        ("1x2", 16, True),
        ("1x2", 8, False),
    }
    assert not set(grid.coarse(MOST_COARSE, out=coarse)) & set(coarse)
    assert sorted(grid.coarse(len(chosen))) == [one.number for one in chosen]
