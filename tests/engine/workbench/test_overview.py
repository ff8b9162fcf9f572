"""Overview of a workbench: surprise of the latest trials as bars, what changed in a week, facts without a history."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from engine.history.activity import TrialSpeed, Week
from engine.settings import PREFIX, Settings
from engine.specs import Request, Sampling
from engine.workbench import Workbench
from engine.workbench.overview import MOST_BARS, bars, changes_of, machine_facts, recent_trials, weeks
from engine.workbench.trials import Draft, LiveTrial
from tests.waiting import until


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    bench = opened(tmp_path_factory.mktemp("home"))
    yield bench
    bench.close()


def opened(home: Path) -> Workbench:
    bench = Workbench(Settings.from_environment({PREFIX + "HOME": str(home)}))
    bench.load_default()
    until(lambda: bench.model.engine)
    return bench


def run(bench: Workbench, max_tokens: int = 12, top_k: int = 5) -> LiveTrial:
    request = Request(max_tokens=max_tokens, top_k=top_k)
    trial = bench.trials.submit(Draft("Once upon a time", sampling=Sampling(seed=3), request=request))
    trial.job.result(60)
    until(lambda: trial.is_stored)
    return trial


def test_bars_are_the_surprise_in_bits() -> None:
    assert bars(np.log([0.5, 0.25, 1.0])) == pytest.approx((1.0, 2.0, 0.0))
    assert bars(np.zeros(0)) == ()


def test_many_tokens_share_a_bar_that_has_the_most_surprising() -> None:
    logprobs = np.log(np.linspace(0.9, 0.1, 1000))
    found = bars(logprobs)
    assert len(found) <= MOST_BARS
    assert max(found) == pytest.approx(-math.log2(0.1))
    assert found == tuple(sorted(found))


def test_tokens_without_a_figure_leave_a_gap_and_hide_nothing() -> None:
    assert math.isnan(bars(np.array([math.nan, -math.log(2)]))[0])
    assert bars(np.array([math.nan, -math.log(2)] * MOST_BARS)) == pytest.approx((1.0,) * MOST_BARS)


def test_recent_trials_have_the_surprise_of_their_own_tokens(bench: Workbench) -> None:
    trial = run(bench)
    expected = pytest.approx([-step.logprob / math.log(2) for step in trial.steps if step.logprob is not None])
    found = next(one for one in recent_trials(bench, 5) if one.summary.id == trial.id)
    assert list(found.bits) == expected


def test_after_a_restart_the_surprise_is_read_from_the_history(home: Path) -> None:
    first = opened(home)
    inspected, plain = run(first), run(first, top_k=0)
    before = {one.summary.id: one.bits for one in recent_trials(first, 5)}
    first.close()
    again = opened(home)
    try:
        after = {one.summary.id: one.bits for one in recent_trials(again, 5)}
        assert after[inspected.id] == pytest.approx(before[inspected.id])
        assert len(after[plain.id]) == 12 and all(map(math.isnan, after[plain.id]))
    finally:
        again.close()


def test_the_last_week_counts_the_trials_of_today(bench: Workbench) -> None:
    before = weeks(bench)
    run(bench)
    after = weeks(bench)
    assert before is not None and after is not None
    assert after.latest.num_trials == before.latest.num_trials + 1
    assert after.latest.num_tokens == before.latest.num_tokens + 12
    assert after.before == Week(0, 0, 0, 0, "", {})


def test_without_a_card_the_speed_is_estimated_from_trials(bench: Workbench) -> None:
    run(bench, 24)
    facts = {fact.name: fact for fact in machine_facts(bench, None)}
    assert facts["speed"].provenance == "estimated"
    speeds = bench.history.activity.week(datetime.now(UTC)).speeds if bench.history is not None else {}
    (speed,) = speeds.values()
    assert f"{speed.num_trials} trial" in facts["speed"].note


def test_nothing_is_asked_of_a_history_that_is_not_there(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.kept, "history", None)
    assert weeks(bench) is None
    assert {fact.provenance for fact in machine_facts(bench, None)} == {"estimated", "not measured"}
    assert all(one.summary.id for one in recent_trials(bench, 5))


@pytest.mark.parametrize(
    ("latest", "before", "expected"),
    [
        ({}, {}, ()),
        ({"a": TrialSpeed(50, 3)}, {}, ()),
        ({"a": TrialSpeed(50.4, 3)}, {"a": TrialSpeed(50, 4)}, ("a: unchanged at 50.4 tok/s (3 trials after 4).",)),
        ({"a": TrialSpeed(60, 1)}, {"a": TrialSpeed(50, 4)}, ("a: 50.0 tok/s → 60.0 tok/s (1 trial after 4).",)),
        ({"b": TrialSpeed(60, 1)}, {"a": TrialSpeed(50, 4)}, ("First used in these 7 days: b.",)),
    ],
)
def test_changes_of_speed_are_reported_for_models_of_both_weeks(
    latest: dict[str, TrialSpeed], before: dict[str, TrialSpeed], expected: tuple[str, ...]
) -> None:
    now, then = (Week(1, 0, 1, 0, "0.3.36", speeds) for speeds in (latest, before))
    assert tuple(changes_of(now, then)) == expected


def test_another_llama_cpp_is_listed_first_and_a_long_list_is_cut() -> None:
    now = Week(9, 0, 9, 0, "0.3.36", {name: TrialSpeed(1, 1) for name in "abcde"})
    then = Week(9, 0, 9, 0, "0.3.35", {"z": TrialSpeed(1, 1)})
    assert tuple(changes_of(now, then)) == (
        "llama.cpp 0.3.35 → 0.3.36.",
        "First used in these 7 days: a, b, c and 2 more.",
    )
    assert not any("llama.cpp" in sentence for sentence in changes_of(now, then._replace(llama="")))
