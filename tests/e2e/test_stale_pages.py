"""Stale pages: every widget of every page, used by a browser that has not seen yet what its last act changed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.runs import RunRecord
from tests.e2e.conftest import Server, running_with
from tests.faults.page import Page
from tests.faults.stale_pages import ADDRESSES, keys, use


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, runs: list[RunRecord], exported: Path) -> Iterator[Server]:
    with running_with(runs, tmp_path_factory.mktemp("stale"), exported) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize(("name", "query"), ADDRESSES)
def test_no_widget_of_a_stale_page_ends_in_a_traceback(server: Server, name: str, query: str) -> None:
    with Page(server.url, name, query) as page:
        first = sorted(keys(page))
    assert first
    for key in first:
        with Page(server.url, name, query) as page:  # raises Failure for a traceback on it
            if page.find(key) is not None:
                use(page, key)
            for other in sorted(keys(page) - set(first)):  # what appeared by that, such as Undo
                if page.find(other) is not None:
                    use(page, other)
    assert "Traceback" not in server.log.read_text()
