"""One workbench for the page tests, with the model that ships and a home folder of its own."""

import time
from collections.abc import Iterator

import pytest

from engine.workbench import Workbench, workbench


def wait_for_model(bench: Workbench) -> None:
    """Return when no model is loading any more."""
    end = time.monotonic() + 60
    while bench.model.is_loading:
        assert time.monotonic() < end, bench.model
        time.sleep(0.05)


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    """The workbench that `current()` gives to the pages, its model loaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOGITBENCH_HOME", str(tmp_path_factory.mktemp("home")))
        bench = workbench.current()
        wait_for_model(bench)
        yield bench
        bench.close()
