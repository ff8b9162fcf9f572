"""Fixture of the pool tests: a pool to attack."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import Pool


@pytest.fixture(scope="module")
def attacked(story_model: Path) -> Iterator[Pool]:
    """Pool of one worker with two sequences."""
    with Pool(story_model, threads=1, parallel=2, n_ctx=16_384) as opened:
        yield opened
