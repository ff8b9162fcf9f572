"""Activity in the history: whether a person has run anything, and what was run in a week."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from engine.errors import ConfigError
from engine.history import History, TrialLabel, TrialRecord
from engine.history.activity import FEWEST_TOKENS, WEEK, TrialSpeed, speed_name
from engine.specs import PoolSpec
from tests.engine.history.run_maker import make_run
from tests.engine.history.trial_maker import make_trial

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def keep(history: History, *, tokens: int = 4, seconds: float = 1.0, **changes: Any) -> TrialRecord:
    """Store a trial that generated `tokens` at an even pace, the first at once."""
    trial = make_trial(tokens, 2, **changes)
    timings = trial.completion.timings._replace(decode_s=seconds)
    record = replace(trial, completion=replace(trial.completion, timings=timings))
    history.record(record, is_urgent=True).result()
    return record


def test_nothing_was_run_in_an_empty_history(history: History) -> None:
    assert not history.activity.is_used()
    week = history.activity.week(NOW)
    assert (week.num_trials, week.num_calls, week.num_tokens, week.num_runs) == (0, 0, 0, 0)
    assert (week.llama, dict(week.speeds)) == ("", {})


@pytest.mark.parametrize("label", [TrialLabel.API, TrialLabel.LOG, TrialLabel.RECORDED])
def test_what_other_programs_did_and_what_was_imported_is_no_use(history: History, label: TrialLabel) -> None:
    keep(history, label=label)
    history.runs.keep(make_run(origin="llama-bench"))
    assert not history.activity.is_used()


def test_a_trial_or_a_benchmark_is_use_until_it_is_deleted(history: History) -> None:
    trial = keep(history)
    assert history.activity.is_used()
    history.delete(trial.id)
    assert not history.activity.is_used()
    run = make_run()
    history.runs.keep(run)
    assert history.activity.is_used()
    history.runs.delete(run.id)
    assert not history.activity.is_used()


def test_use_survives_a_restart(history: History) -> None:
    keep(history)
    path = history.path
    history.close()
    with History.open(path) as again:
        assert again.activity.is_used()


def test_a_week_counts_its_own_days_only(history: History) -> None:
    keep(history, tokens=3, created_at=NOW - DAY)
    keep(history, tokens=4, created_at=NOW - WEEK)  # its first moment
    keep(history, tokens=5, created_at=NOW - DAY, label=TrialLabel.API)
    keep(history, tokens=6, created_at=NOW - DAY, label=TrialLabel.LOG)
    keep(history, tokens=7, created_at=NOW)  # the first moment after it
    keep(history, tokens=8, created_at=NOW - WEEK - DAY)
    for created_at, origin in ((NOW - DAY, "measured"), (NOW - DAY, "log"), (NOW - 8 * DAY, "measured")):
        history.runs.keep(make_run(created_at=created_at, origin=origin))
    week = history.activity.week(NOW)
    assert (week.num_trials, week.num_calls, week.num_tokens, week.num_runs) == (2, 1, 12, 1)
    before = history.activity.week(NOW - WEEK)
    assert (before.num_trials, before.num_calls, before.num_tokens, before.num_runs) == (1, 0, 8, 1)


def test_speeds_are_medians_of_trials_that_are_long_enough(history: History) -> None:
    tokens = FEWEST_TOKENS
    for seconds in (1.0, 3.0, 5.0):
        keep(history, tokens=tokens, seconds=seconds, created_at=NOW - DAY)
    keep(history, tokens=tokens - 1, seconds=0.001, created_at=NOW - DAY)
    trial = keep(history, tokens=tokens, seconds=0.001, created_at=NOW - 9 * DAY)
    speeds = history.activity.week(NOW).speeds
    assert list(speeds) == [trial.model.name]
    assert speeds[trial.model.name] == pytest.approx(TrialSpeed((tokens - 1) / 3.0, 3))


def test_speeds_of_two_engines_are_not_mixed(history: History) -> None:
    times = {None: 1.0, "float32": 100.0, "bfloat16": 50.0}
    for dtype, seconds in times.items():
        kind: Any = dtype
        trial = keep(history, tokens=17, seconds=seconds, created_at=NOW - DAY, pool=PoolSpec(dtype=kind))
    name = trial.model.name
    speeds = history.activity.week(NOW).speeds
    assert {one: speed.per_s for one, speed in speeds.items()} == pytest.approx(
        {speed_name(name, dtype): 16 / seconds for dtype, seconds in times.items()}
    )
    assert speeds[name].num_trials == 1
    assert {f"{name} ({dtype} in transformers)" for dtype in times if dtype} < speeds.keys()


def test_the_version_is_that_of_the_newest_trial(history: History) -> None:
    for days, version in ((1, "0.3.36"), (3, "0.3.35"), (2, "0.3.34")):
        keep(history, created_at=NOW - days * DAY, versions={"llama-cpp-python": version})
    keep(history, created_at=NOW - 6 * DAY, versions={})
    assert history.activity.week(NOW).llama == "0.3.36"
    assert history.activity.week(NOW - 5 * DAY).llama == ""


def test_a_time_without_a_zone_is_refused(history: History) -> None:
    with pytest.raises(ConfigError, match="must have a time zone"):
        history.activity.week(datetime(2026, 11, 28))
