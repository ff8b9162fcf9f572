"""Capacity: the number of users a machine serves, interpolated between measured numbers and never beyond them."""

import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from engine.bench.analysis.capacity import capacity
from engine.bench.planning.plan import Objective, Plan
from engine.errors import ConfigError
from engine.runs import CellRecord, RunRecord
from engine.samples import make_sample

ROUNDS = 6


def run(figures: dict[int, dict[str, float]], **settings: Any) -> RunRecord:
    """Return a run with one cell per number of users, whose samples all have the given figures."""
    cells = tuple(
        CellRecord(number=number, label=f"{users}", settings={"users": users, **settings})
        for number, users in enumerate(figures)
    )
    samples = [
        make_sample(cell=number, round=round_number, duration_s=10, **values)
        for number, values in enumerate(figures.values())
        for round_number in range(ROUNDS)
    ]
    return RunRecord(
        id="run",
        created_at=datetime.now(UTC),
        name="",
        question="users",
        status="done",
        plan=Plan(question="users", model="m.gguf").to_dict(),
        machine={},
        versions={},
        cells=cells,
        samples=np.concatenate(samples),
    )


def served(share: float, ttft_s: float = 0.4, per_s: float = 20.0) -> dict[str, float]:
    """Return the figures of a cell in which this share of the requests met the run's own objective."""
    return {
        "requests_per_s": 2.0,
        "goodput_per_s": 2.0 * share,
        "ttft_s": ttft_s,
        "ttft_p95_s": 2 * ttft_s,
        "tpot_s": 1 / per_s,
        "tpot_p95_s": 1.5 / per_s,
        "decode_per_s": per_s,
    }


def test_the_share_is_followed_between_two_measured_numbers() -> None:
    found = capacity(run({4: served(1.0), 8: served(1.0), 16: served(0.9)}))
    assert (found.users, found.is_at_least) == (12, False)
    assert "serves 12 users with first token < 1 s and ≥ 10 tok/s each for 95 % of requests" in found.sentence
    assert "between 8 and 16" in found.sentence
    assert [point.users for point in found.points] == [4, 8, 16]
    assert found.points[2].share == pytest.approx(0.9)
    assert found.points[0].ttft_s.value == pytest.approx(0.4)


def test_beyond_what_was_measured_it_says_at_least() -> None:
    found = capacity(run({1: served(1.0), 32: served(0.95)}))
    assert (found.users, found.is_at_least) == (32, True)
    assert "at least 32 users" in found.sentence


@pytest.mark.parametrize(("fewest", "words"), [(1, "not even one user"), (4, "fewer than 4 users")])
def test_below_what_was_measured_it_says_fewer(fewest: int, words: str) -> None:
    found = capacity(run({fewest: served(0.5), 8: served(0.1)}))
    assert (found.users, found.is_at_least) == (0, False)
    assert words in found.sentence


def test_a_number_of_users_behind_one_that_failed_is_not_claimed() -> None:
    found = capacity(run({1: served(1.0), 2: served(0.5), 4: served(1.0)}))
    assert found.users == 1
    assert found.sentence.endswith("of requests.")


def test_two_neighbours_are_not_divided() -> None:
    assert capacity(run({7: served(1.0), 8: served(0.949)})).users == 7


def test_another_objective_is_judged_by_quantiles() -> None:
    """The p95 of the first token is 0.2, 0.4 and 0.8 s; 0.566 s is the geometric mean of the last two."""
    figures = {2: served(1, 0.1), 4: served(1, 0.2), 8: served(1, 0.4)}
    found = capacity(run(figures), Objective(ttft_s=math.sqrt(0.4 * 0.8) + 1e-6))
    assert (found.users, found.is_at_least) == (6, False)
    assert all(math.isnan(point.share) for point in found.points)
    slow = capacity(run(figures), Objective(ttft_s=0.5, per_s=14))
    assert slow.users == 0  # 95 % of the streams reach 13.3 tok/s


def test_the_middle_of_the_requests_is_judged_by_the_median() -> None:
    figures = {2: served(1, 0.1), 4: served(1, 0.2), 8: served(1, 0.4)}
    assert capacity(run(figures), Objective(ttft_s=0.4, per_s=5, share=0.5)).is_at_least
    assert capacity(run(figures), Objective(ttft_s=0.39, per_s=5, share=0.5)).users == 7


def test_with_too_few_requests_for_a_percentile_the_median_stands() -> None:
    figures = {users: served(1) | {"ttft_p95_s": math.nan, "tpot_p95_s": math.nan} for users in (1, 2)}
    assert capacity(run(figures), Objective(ttft_s=0.41, per_s=19)).is_at_least
    assert not capacity(run(figures), Objective(ttft_s=0.39, per_s=19)).users


def test_flagged_samples_do_not_count() -> None:
    given = run({1: served(1.0), 2: served(1.0)})
    samples = given.samples.copy()
    bad = (samples["cell"] == 1) & (samples["round"] == 0)
    samples["goodput_per_s"][bad], samples["is_replaced"][bad] = 0, True
    assert capacity(replace(given, samples=samples)).is_at_least


def test_of_several_settings_the_one_that_serves_most_is_taken() -> None:
    few = run({1: served(1.0), 4: served(0.0)}, layout="1x1")
    many = run({1: served(1.0), 4: served(1.0)}, layout="1x2")
    samples = many.samples.copy()
    samples["cell"] += 2
    cells = (*few.cells, *(replace(cell, number=cell.number + 2) for cell in many.cells))
    both = replace(few, cells=cells, samples=np.concatenate([few.samples, samples]))
    assert capacity(both).users == 4


def test_a_run_without_users_has_no_answer() -> None:
    with pytest.raises(ConfigError, match="users varied"):
        capacity(replace(run({1: served(1.0)}), cells=()))
