"""Progress of tasks: a share that never falls, and the time left by the pace so far."""

import itertools
import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tasks import LEAST_FROM, SMOOTHED_OVER_S, UNSAID_FROM, Progress, Task, TimeLeft
from tests.waiting import Clock

WITHIN_S = 60.0


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20))
def test_the_share_never_falls_and_stays_in_its_bounds(shares: list[float]) -> None:
    task = Task("Writing", lambda _task: None)
    before = 0.0
    for share in shares:
        task.report(share)
        assert before <= task.share <= 1.0
        before = task.share


@given(
    st.lists(st.tuples(st.floats(0.01, 60.0), st.floats(0.5, 2.0)), min_size=2, max_size=60),
    st.floats(10.0, 10_000.0),
)
def test_time_left_by_a_pace_that_varies_stays_near_the_truth(steps: list[tuple[float, float]], total_s: float) -> None:
    """The work proceeds at half to twice the usual pace; the estimate is never negative nor above twice the total."""
    clock = Clock()
    task = Task("Writing", lambda _task: None, clock=clock)
    done_s = 0.0
    for seconds, pace in steps:
        if done_s + seconds * pace >= total_s:
            break
        clock.now += seconds
        done_s += seconds * pace
        task.report(done_s / total_s)
        left_s = task.left_s
        if left_s is not None:
            assert left_s <= 2.0 * total_s
            assert left_s >= 0.0


@given(st.floats(1.0, 1e5), st.lists(st.floats(0.01, 0.99), min_size=1, max_size=20))
def test_time_left_at_an_even_pace_is_exact_between_reports_too(total_s: float, shares: list[float]) -> None:
    clock = Clock()
    began = clock.now
    task = Task("Writing", lambda _task: None, clock=clock)
    for share in sorted(shares):
        clock.now = began + share * total_s
        task.report(share)
        known = task.left_s
        assert (known is None) == (share < 0.05)
        if known is not None:
            assert known == pytest.approx((1 - share) * total_s, rel=1e-6, abs=1e-6)
            clock.now += 0.5 * known
            assert task.left_s == pytest.approx(0.5 * known, rel=1e-6, abs=1e-6)


REPORTS = st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 1e4)), min_size=1, max_size=40)


@given(REPORTS)
def test_the_time_left_never_rises_whatever_is_reported(reports: list[tuple[float, float]]) -> None:
    left, now, shown = TimeLeft(), 0.0, []
    for dt, estimate in reports:
        now += dt
        shown += [left.at(now - dt / 2), left.at(now)]
        left.report(estimate, now)
        shown.append(left.at(now))
    known = [seconds for seconds in shown if seconds is not None]
    assert known[0] == reports[0][1]
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(known))


@given(REPORTS)
def test_the_time_left_is_at_most_the_estimate_and_says_so_where_it_is_much_less(
    reports: list[tuple[float, float]],
) -> None:
    """The estimate is the reports, smoothed: it lies between what it was and what is reported."""
    left, now, low, high = TimeLeft(), 0.0, 0.0, 0.0
    for number, (dt, estimate) in enumerate(reports):
        now, low, high = now + dt, max(0.0, low - dt), max(0.0, high - dt)
        low, high = (min(low, estimate), max(high, estimate)) if number else (estimate, estimate)
        left.report(estimate, now)
        seconds = left.at(now)
        assert seconds is None or seconds <= high + 1e-6
        assert left.is_least or seconds is None or seconds * LEAST_FROM >= low - 1e-6
        assert seconds is not None or left.is_least


@given(st.floats(1.0, 1e4), st.floats(1.0, 1e4), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_what_is_said_reaches_nothing_when_the_estimate_does(
    first_s: float, later_s: float, at_share: float, share: float
) -> None:
    left, now = TimeLeft(), at_share * first_s
    left.report(first_s, 0.0)
    left.report(later_s, now)
    before_s = first_s - now
    estimate_s = before_s + (later_s - before_s) * -math.expm1(-now / SMOOTHED_OVER_S)
    said_s = min(before_s, estimate_s)
    seconds = left.at(now + share * estimate_s)
    if said_s * UNSAID_FROM > estimate_s:
        assert seconds == pytest.approx((1 - share) * said_s, rel=1e-6, abs=1e-6)
    else:
        assert seconds is None


def test_an_outlier_hardly_moves_the_time_left_and_a_lasting_change_does() -> None:
    left = TimeLeft()
    left.report(600.0, 0.0)
    left.report(60.0, 0.1)
    assert left.at(0.1) == pytest.approx(599.9 - 539.9 * 0.00995, abs=0.1)
    for tick in range(2, 400):
        left.report(60.0, tick / 10)
    assert left.at(40.0) == pytest.approx(60.0, abs=12.0)


@pytest.mark.parametrize(
    ("later_s", "words"),
    [(30.0, "30 s left"), (35.0, "30 s left"), (60.0, "at least 30 s left"), (300.0, "longer than estimated")],
)
def test_a_time_that_turns_out_longer_is_shown_as_a_lower_bound(later_s: float, words: str) -> None:
    clock = Clock()
    task = Task("Writing", lambda _task: None, clock=clock)
    task.report(0.5, "writing", 60.0)
    assert task.progress.left == "60 s left"
    clock.now += 30.0
    task.report(0.5, "writing", later_s)
    assert task.progress.left == words


@pytest.mark.parametrize("unknown", [None, math.nan, math.inf])
def test_there_is_one_value_for_an_unknown_time(unknown: float | None) -> None:
    task = Task("Fetching", lambda _task: None)
    task.report(0.5, "fetching", 30.0)
    assert task.left_s == pytest.approx(30.0, abs=5.0)
    task.report(0.5, "the connection broke", unknown)
    assert task.left_s is None


def test_progress_can_be_looked_up_where_nobody_reports_it() -> None:
    written, begun, go_on = [0.25], threading.Event(), threading.Event()

    def work(task: Task[None]) -> None:
        task.follow(lambda: Progress(written[0], f"{written[0]:.0%} written", 12.0))
        begun.set()
        assert go_on.wait(WITHIN_S)

    task = Task("Quantising", work).start()
    assert begun.wait(WITHIN_S)
    assert (task.share, task.doing) == (0.25, "25% written")
    written[0] = 0.1
    assert task.share == 0.25
    go_on.set()
    assert task.wait(WITHIN_S) and task.share == 1.0
