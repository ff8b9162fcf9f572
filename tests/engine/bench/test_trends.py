"""Trend of a configuration: what changed, what became slower, and how much runs differ without any change."""

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from engine.bench.analysis.trends import trend
from engine.bench.analysis.wording import p_value
from engine.runs import TrendPoint
from engine.stats import median_interval
from tests.engine.bench.run_maker import FIRST_DAY, MACHINE, VERSIONS


def point(
    day: int,
    speed: float = 50.0,
    *,
    num_rounds: int = 8,
    noise_sd: float = 0.005,
    machine: Mapping[str, Any] = MACHINE,
    **versions: str,
) -> TrendPoint:
    """Return the point of a run on that day; `versions` replace the run's own, with "_" for "-"."""
    figures = speed * np.exp(np.random.default_rng(day).normal(0, noise_sd, num_rounds))
    interval = median_interval(figures)
    return TrendPoint(
        run_id=f"run {day}",
        created_at=FIRST_DAY + timedelta(days=day),
        machine_hash=str(machine.get("hash", "")),
        machine=machine,
        versions=VERSIONS | {name.replace("_", "-"): version for name, version in versions.items()},
        value=interval.value,
        low=interval.low,
        high=interval.high,
        by_round=dict(enumerate(figures.tolist())),
    )


def with_llama(commit: str) -> dict[str, Any]:
    """Return the machine with another build of llama.cpp, which has another fingerprint."""
    return {**MACHINE, "llama": {"commit": commit}, "hash": commit}


def test_without_runs_and_with_one() -> None:
    assert trend([]).sentence == "No runs of this configuration yet."
    one = trend([point(0)])
    assert (one.newest, one.changes, one.regressions) == (None, (), ())
    assert one.sentence.startswith("One run so far: ")


def test_points_come_in_the_order_of_time() -> None:
    found = trend([point(2), point(0), point(1)])
    assert [one.run_id for one in found.points] == ["run 0", "run 1", "run 2"]
    assert found.newest is not None
    assert found.newest.num_runs == 3


def test_a_slower_run_is_a_regression() -> None:
    found = trend([*map(point, range(5)), point(5, 45)])
    assert found.newest is not None
    assert (found.newest.verdict.word, found.newest.num_runs) == ("slower", 6)
    assert found.regressions == (found.newest,)
    assert (found.newest.run_id, found.newest.what) == ("run 5", "")
    assert "slower than the 5 earlier runs with this fingerprint: 0.90 times" in found.sentence


def test_a_faster_run_and_an_equal_one_are_none() -> None:
    faster = trend([*map(point, range(5)), point(5, 55)])
    assert faster.newest is not None
    assert (faster.newest.verdict.word, faster.regressions) == ("faster", ())
    equal = trend([*map(point, range(6))])
    assert equal.newest is not None
    assert (equal.newest.verdict.word, equal.regressions) == ("same", ())
    assert "same as the 5 earlier runs" in equal.sentence


def test_the_noise_band_holds_runs_like_those_it_was_made_of() -> None:
    random = np.random.default_rng(1)
    inside = []
    for _attempt in range(400):
        speeds = 50 * np.exp(random.normal(0, 0.03, 9))
        (band,) = trend([point(day, float(speed), noise_sd=0.0) for day, speed in enumerate(speeds[:8])]).bands
        inside.append(band.low <= speeds[8] <= band.high)
    assert np.mean(inside) == pytest.approx(0.95, abs=0.035)


def test_there_is_a_band_between_changes_and_none_from_few_runs() -> None:
    before = [point(day, llama_cpp_python="1") for day in range(5)]
    after = [point(day, 60, llama_cpp_python="2") for day in range(5, 8)]
    (band,) = trend([*before, *after]).bands
    assert (band.first, band.last) == (before[0].created_at, before[-1].created_at)
    assert band.low < min(one.value for one in before) and max(one.value for one in before) < band.high < 60
    assert trend(before[:3]).bands == ()


def test_the_extent_is_that_of_the_values_and_not_from_zero() -> None:
    found = trend([point(day, 50 + day) for day in range(5)])
    low, high = found.extent
    values = [one.value for one in found.points] + [found.bands[0].low, found.bands[0].high]
    assert 40 < low < min(values) < max(values) < high < 65
    low, high = trend([point(0)]).extent
    assert low < found.points[0].value < high


def test_of_seconds_more_are_slower() -> None:
    found = trend([*map(point, range(5)), point(5, 60)], "ttft_s")
    assert [one.verdict.word for one in found.regressions] == ["slower"]


def test_of_what_is_neither_better_nor_worse_nothing_is_a_regression() -> None:
    found = trend([*map(point, range(5)), point(5, 40)], "cpu_cores")
    assert found.newest is not None
    assert (found.newest.verdict.word, found.regressions) == ("less", ())


def test_of_few_runs_it_is_said_that_they_may_differ_by_themselves() -> None:
    few = trend([point(0), point(1), point(2, 45)])
    assert [change.num_runs for change in few.regressions] == [3]
    assert few.sentence.endswith("With so few runs this may be chance; a few more would settle it.")
    assert "With so few runs" not in trend([*map(point, range(3)), point(3, 45)]).sentence
    assert "With so few runs" not in trend([point(0), point(1)]).sentence


def test_what_runs_differ_by_themselves_is_no_regression() -> None:
    levels = [50, 46, 53, 48, 52, 46.5]
    found = trend([point(day, level) for day, level in enumerate(levels)])
    assert found.newest is not None
    assert found.newest.verdict.word == "not enough data"
    assert found.newest.verdict.more_rounds > 0
    assert found.regressions == ()
    assert "no change detected" in found.sentence
    assert [one.verdict.word for one in trend([point(0), point(1, 46)]).regressions] == ["slower"]


def test_runs_that_differ_by_themselves_are_seldom_called_slower() -> None:
    random = np.random.default_rng(0)
    num_wrong, num_trials = 0, 60
    for trial in range(num_trials):
        levels = 50 * np.exp(random.normal(0, 0.03, 6))
        points = [point(6 * trial + day, level, noise_sd=0.02) for day, level in enumerate(levels)]
        newest = trend(points).newest
        num_wrong += newest is not None and newest.verdict.word in ("faster", "slower")
    assert num_wrong / num_trials < 0.05 + 3 * math.sqrt(0.05 * 0.95 / num_trials)


def test_only_the_latest_runs_are_judged_against() -> None:
    old = [point(day, 80) for day in range(10)]
    found = trend([*old, *(point(day) for day in range(10, 21))])
    assert found.newest is not None
    assert (found.newest.verdict.word, found.newest.num_runs) == ("same", 11)


def test_a_change_of_llama_is_named_and_judged() -> None:
    before = [point(day, machine=with_llama("old"), llama_cpp_python="0.3.35") for day in range(4)]
    after = [point(day, 44, machine=with_llama("new")) for day in (4, 5)]
    found = trend([*before, *after])
    (change,) = found.changes
    assert (change.run_id, change.what) == ("run 4", "llama.cpp 0.3.35 → 0.3.36")
    assert change.verdict.word == "slower"
    assert found.newest is not None
    assert found.newest.num_runs == 2
    assert [(one.run_id, one.what) for one in found.regressions] == [("run 4", change.what)]
    assert found.sentence.endswith(
        f"Since 2026-01-05, llama.cpp 0.3.35 → 0.3.36: slower: 0.88 times ({_bounds(change)}), "
        f"{p_value(change.verdict.p_value)}."
    )


def _bounds(change: Any) -> str:
    return f"{change.verdict.ratio.low:.2f} to {change.verdict.ratio.high:.2f}"


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        (point(1, logitbench="0.2.0"), "Logitbench 0.1.0 → 0.2.0"),
        (point(1, python="3.12.1", logitbench=""), "Logitbench 0.1.0 → ?, Python 3.11.9 → 3.12.1"),
        (point(1, machine=with_llama("new")), "another build of llama.cpp"),
        (point(1, machine={**MACHINE, "system": "Linux 6.6"}), "system Linux 6.1 → Linux 6.6"),
    ],
)
def test_other_changes_are_named(changed: TrendPoint, what: str) -> None:
    (change,) = trend([point(0), changed]).changes
    assert change.what == what
    assert change.verdict.word == "same"


def test_other_machines_are_drawn_and_not_judged() -> None:
    other = {**MACHINE, "cpu": "Other CPU", "hash": "cd34"}
    found = trend([point(0), point(1, 80, machine=other), point(2)])
    assert len(found.points) == 3
    assert found.changes == ()
    assert found.newest is not None
    assert found.newest.num_runs == 2
    alone = trend([point(0), point(1, 30, machine=other)])
    assert (alone.newest, alone.regressions) == (None, ())
    assert "the first run with this fingerprint" in alone.sentence


def test_a_machine_that_is_not_recorded_is_not_judged() -> None:
    found = trend([point(0, machine={}), point(1, 30, machine={})])
    assert (found.newest, found.changes, found.regressions) == (None, (), ())
