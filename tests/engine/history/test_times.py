"""Times of what is stored: any time that a file can name is either kept as it is or refused in words."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.history import History
from engine.history.checks import FIRST_YEAR, LAST_YEAR, checked_time
from engine.history.run_file import run_from_json, run_to_json
from engine.history.trial_file import trial_bytes, trial_from_bytes
from tests.engine.history.run_maker import make_run
from tests.engine.history.trial_maker import make_trial, uuid7

ZONES = st.one_of(st.none(), st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes))))
TIMES = st.datetimes(timezones=ZONES)
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
RUN, TRIAL = make_run(), make_trial()


def dated(at: datetime) -> bytes:
    """A trial file with another time in it."""
    return msgspec.msgpack.encode({**msgspec.msgpack.decode(trial_bytes(TRIAL)), "created_at": at})


@given(at=TIMES)
@example(at=FIRST)
@example(at=LAST)
@example(at=datetime(2026, 11, 25))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_run_and_a_trial_of_any_time_are_kept_or_refused(history: History, at: datetime) -> None:
    utc = at.replace(tzinfo=UTC) - (at.utcoffset() or timedelta(0)) if 2 < at.year < 9998 else at
    is_good = at.tzinfo is not None and FIRST_YEAR <= utc.year <= LAST_YEAR
    run = replace(RUN, id=uuid7(), created_at=at)
    if is_good:
        trial = replace(TRIAL, created_at=at)
        assert run_from_json(run_to_json(run).encode(), run.samples).created_at == at
        assert trial_from_bytes(trial_bytes(trial)).created_at == at
        history.runs.keep(run)
        kept = history.runs.run(run.id)
        assert kept is not None and kept.created_at == at
        return
    with pytest.raises(ConfigError, match="created_at = "):
        run_from_json(run_to_json(run).encode(), run.samples)
    with pytest.raises(ConfigError, match="created_at = "):
        trial_from_bytes(dated(at))
    with pytest.raises(ConfigError, match="created_at = "):
        history.runs.keep(run)


@given(at=TIMES, zone=ZONES.filter(bool), days=st.floats(-50, 50))
@example(at=datetime(FIRST_YEAR, 1, 1, tzinfo=timezone(timedelta(hours=23))), zone=timezone.min, days=-50)
@example(at=datetime(LAST_YEAR, 12, 31, tzinfo=timezone(timedelta(hours=-23))), zone=timezone.max, days=50)
def test_a_kept_time_has_a_date_in_every_zone_and_some_days_around_it(
    at: datetime, zone: timezone, days: float
) -> None:
    with suppress(ConfigError):
        kept = checked_time(at)
        assert kept == at
        assert (kept.astimezone(zone) + timedelta(days=days)).year
