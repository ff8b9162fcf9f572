"""Workbenches with the model that ships, and trials that have ended."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.settings import Settings
from engine.workbench import Workbench
from engine.workbench.trials import LiveTrial
from tests.waiting import until


def opened(home: Path) -> Workbench:
    """Return a workbench with this home folder, which loads the model."""
    bench = Workbench(Settings.from_environment({"LOGITBENCH_HOME": str(home)}))
    bench.load_default()
    return bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    """A workbench with the model that ships, for the tests of a file."""
    bench = opened(tmp_path_factory.mktemp("home"))
    until(lambda: bench.model.engine)
    yield bench
    bench.close()


def ended(trial: LiveTrial) -> LiveTrial:
    trial.job.result(60)
    return trial
