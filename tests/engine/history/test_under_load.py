"""Crashes during writes, and appends while others read: short runs of the programs in tests/faults and tests/speed."""

from pathlib import Path

import pytest

from tests.faults.killed_writer import crash_once
from tests.speed.appending import append

pytestmark = pytest.mark.slow


def test_killed_at_random_moments_nothing_committed_is_lost_and_nothing_is_halved(path: Path) -> None:
    crashes = [crash_once(path, seed=seed) for seed in range(3)]
    assert [crash.wrong for crash in crashes] == [""] * 3
    assert sum(crash.num_rows for crash in crashes) > 0


def test_appending_while_a_page_reads(path: Path) -> None:
    found = append(path, seconds=3)
    assert found.errors == []
    assert found.num_samples > 0
    assert found.num_reads > 0
