"""The download of the history: streamed, and a failure is said before it begins."""

from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from streamlit.testing.v1 import AppTest

from engine.history import History
from engine.history.archives.exporting import import_archive
from engine.runs import RunRecord
from pages.parts import exports
from tests.pages.app import choose, open_page


@pytest.fixture
def client(history: History) -> TestClient:
    bench = SimpleNamespace(history=history)
    return TestClient(Starlette(routes=exports.routes(lambda: bench)))  # type: ignore[arg-type, return-value]


def test_the_links_of_the_page_give_archives(runs: list[RunRecord], history: History, client: TestClient) -> None:
    everything, some = (link.proto.url for link in choose(page(), 0, 1).get("link_button"))
    assert everything == exports.PATH
    answer = client.get(some)
    assert answer.headers["content-type"] == "application/zip"
    assert answer.headers["content-disposition"] == 'attachment; filename="logitbench-history.zip"'
    assert import_archive(history, answer.content).num_known == 2
    assert import_archive(history, client.get(everything).content).num_known == 3


def test_what_is_gone_is_said_instead(client: TestClient) -> None:
    answer = client.get(exports.PATH, params={"runs": "gone"})
    assert answer.status_code == 409 and "There is no run 'gone'" in answer.text


def page() -> AppTest:
    return open_page("history.py", "History")
