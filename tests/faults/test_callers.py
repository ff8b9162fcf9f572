"""Requests from connections that come, go and break off: none is lost, hangs or gets another's answer."""

from pathlib import Path

import pytest

from tests.faults.callers import campaign

MEMORY_BYTES = 30e6


@pytest.mark.slow
def test_connections_that_break_off_lose_nothing_of_others(tmp_path: Path) -> None:
    outcome = campaign(400, tmp_path)
    assert outcome.is_sound, outcome
    assert outcome.counts["answered"] > 100 and outcome.counts.total() == 400
    assert outcome.num_trials > 4
    assert outcome.bytes_late < outcome.bytes_early + MEMORY_BYTES
