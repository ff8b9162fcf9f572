"""Formulas of a sample's metrics, on timestamps made by hand."""

import math

import numpy as np
import pytest

from engine.bench.measurement.metrics import (
    FEWEST_FOR_P95,
    FEWEST_FOR_P99,
    Repetition,
    RequestTimes,
    busy_window,
    metrics_of,
)
from engine.bench.planning.plan import Objective
from engine.samples import METRICS_BY_NAME


def request(
    asked: float, first: float, gaps: list[float], *, waited: float = 0.0, num_computed: int = 10
) -> RequestTimes:
    """Return a request that waited `waited` s, with its first token at `first` and the others after these gaps."""
    tokens = first + np.concatenate([[0.0], np.cumsum(gaps)])
    return RequestTimes(asked, asked + waited, first, tokens, num_computed)


def figures(*streams: list[RequestTimes], objective: Objective | None = None) -> dict[str, float]:
    return metrics_of([list(streams)], objective or Objective())


def test_every_name_is_a_metric() -> None:
    assert set(figures([request(0, 1, [0.5])])) <= set(METRICS_BY_NAME)


def test_end_to_end_is_first_token_plus_time_per_token() -> None:
    random = np.random.default_rng(0)
    for num in (1, 2, 7, 100):
        asked = float(random.uniform(0, 1e6))
        one = request(asked, asked + float(random.exponential()), random.exponential(0.02, num - 1).tolist())
        assert one.e2e_s == pytest.approx(float(one.tokens[-1]) - asked, rel=1e-9)


def test_a_single_stream_has_one_speed() -> None:
    found = figures([request(2.0, 3.0, [0.1] * 50, waited=0.5)])
    assert found["decode_per_s"] == pytest.approx(10)
    assert found["tokens_per_s"] == pytest.approx(10)
    assert found["prefill_per_s"] == pytest.approx(10 / 0.5)
    assert (found["ttft_s"], found["tpot_s"]) == pytest.approx((1.0, 0.1))
    assert found["end_to_end_per_s"] == pytest.approx(51 / 6)
    assert found["requests_per_s"] == pytest.approx(1 / 6)


def test_only_the_time_in_which_all_streams_are_busy_counts() -> None:
    early, late = request(0, 1.0, [1.0] * 9), request(0, 4.0, [0.5] * 20)
    assert busy_window([[early], [late]]) == (4.0, 10.0)
    assert figures([early], [late])["tokens_per_s"] == pytest.approx((6 + 12) / 6)


def test_a_stream_that_asks_again_stays_busy() -> None:
    again = [request(0, 1.0, [1.0] * 2), request(3.0, 5.0, [1.0] * 5)]
    other = request(0, 2.0, [1.0] * 6)
    assert busy_window([again, [other]]) == (2.0, 8.0)
    assert figures(again, [other])["tokens_per_s"] == pytest.approx((1 + 4 + 6) / 6)


def test_streams_that_were_never_busy_at_once_have_no_total_speed() -> None:
    assert math.isnan(figures([request(0, 1.0, [1.0])], [request(0, 3.0, [1.0])])["tokens_per_s"])


def test_repetitions_add_their_tokens_and_their_seconds() -> None:
    fast: Repetition = [[request(0, 1.0, [0.1] * 10)]]
    slow: Repetition = [[request(100, 101.0, [0.3] * 10)]]
    found = metrics_of([fast, slow], Objective())
    assert found["tokens_per_s"] == pytest.approx(20 / 4)
    assert found["end_to_end_per_s"] == pytest.approx(22 / (2 + 4)), "the time between them belongs to neither"


def test_prompts_computed_at_the_same_time_share_it() -> None:
    overlapping = [[request(0, 2.0, [])], [request(0, 3.0, [], waited=1.0)]]
    assert figures(*overlapping)["prefill_per_s"] == pytest.approx(20 / 3)
    apart = [[request(0, 2.0, [])], [request(10.0, 13.0, [])]]
    assert figures(*apart)["prefill_per_s"] == pytest.approx(20 / 5)


def test_cached_prompts_are_no_prefill() -> None:
    assert math.isnan(figures([request(0, 1.0, [0.1], num_computed=0)])["prefill_per_s"])


def test_prompts_alone_have_a_prefill_and_no_decode() -> None:
    alone = RequestTimes(asked=0.0, started=0.5, first=1.0, tokens=np.zeros(0), num_computed=10)
    found = figures([alone])
    assert (found["prefill_per_s"], found["ttft_s"], found["e2e_s"]) == pytest.approx((20, 1.0, 1.0))
    for name in ("tokens_per_s", "decode_per_s", "end_to_end_per_s", "tpot_s", "gap_p50_s"):
        assert math.isnan(found[name]), name


def test_a_percentile_needs_its_number_of_values() -> None:
    few = figures(*([request(0, 1.0, [0.1])] for _ in range(FEWEST_FOR_P95 - 1)))
    enough = figures(*([request(0, 1.0 + index, [0.1])] for index in range(FEWEST_FOR_P95)))
    assert math.isnan(few["ttft_p95_s"]) and math.isnan(few["tpot_p95_s"]) and math.isnan(few["gap_p95_s"])
    assert enough["ttft_p95_s"] == pytest.approx(np.percentile(np.arange(1.0, 21.0), 95))
    gaps = np.random.default_rng(1).exponential(0.01, FEWEST_FOR_P99)
    assert math.isnan(figures([request(0, 1.0, gaps[1:].tolist())])["gap_p99_s"])
    assert figures([request(0, 1.0, gaps.tolist())])["gap_p99_s"] == pytest.approx(np.percentile(gaps, 99))


@pytest.mark.parametrize(
    ("first", "gap", "is_met"), [(0.9, 0.09, True), (1.1, 0.09, False), (0.9, 0.11, False), (1.0, 0.1, True)]
)
def test_goodput_counts_requests_that_were_fast_enough(first: float, gap: float, is_met: bool) -> None:
    found = figures([request(0, first, [gap] * 10)], objective=Objective(ttft_s=1.0, per_s=10.0))
    assert found["goodput_per_s"] == pytest.approx(found["requests_per_s"] if is_met else 0.0)


def test_a_single_token_has_no_speed_to_miss() -> None:
    assert request(0, 0.5, []).meets(Objective(per_s=100_000))
