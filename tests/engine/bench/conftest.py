"""Configurations of engines, for the tests of benchmarks."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from engine.bench.planning import feasibility
from engine.bench.planning.plan import Cell
from tests.engine.bench.desk import cells

Made = Callable[..., list[Cell]]


@pytest.fixture
def made(story_model: Path) -> Made:
    """Function that returns configurations, as `cells`, of the model that ships."""
    return partial(cells, story_model)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is missing of each server that is started here: nothing, unless a test says so."""
    missing: dict[str, str] = {}
    monkeypatch.setattr(feasibility, "managed_missing", lambda kind: missing.get(kind, ""))
    return missing
