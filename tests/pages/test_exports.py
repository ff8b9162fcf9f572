"""The download of the history: streamed, and a failure is said before it begins."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from streamlit.testing.v1 import AppTest

from engine.history import History
from engine.history.archives.exporting import import_archive
from engine.history.archives.pieces import ArchivePieces
from engine.runs import RunRecord
from pages.parts import exports
from tests.pages.app import choose, open_page
from tests.waiting import until


@pytest.fixture
def client(history: History) -> TestClient:
    bench = SimpleNamespace(history=history)
    return TestClient(Starlette(routes=exports.routes(lambda: bench)))  # type: ignore[arg-type, return-value]


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Archives that do not go on before their event is set."""
    begun: list[Event] = []

    class Waiting(ArchivePieces):
        def __next__(self) -> bytes:
            if not hasattr(self, "released"):
                self.released = Event()
                begun.append(self.released)
                self.released.wait(60)
            return super().__next__()

    monkeypatch.setattr(exports, "ArchivePieces", Waiting)
    return begun


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


def test_only_so_many_archives_are_sent_at_once(
    runs: list[RunRecord], client: TestClient, waiting: list[Event]
) -> None:
    with ThreadPoolExecutor(exports.MOST_AT_ONCE) as readers:
        sent = [readers.submit(client.get, exports.PATH) for _ in range(exports.MOST_AT_ONCE)]
        until(lambda: len(waiting) == exports.MOST_AT_ONCE, "the archives do not begin")
        refused = client.get(exports.PATH)
        assert refused.status_code == 429 and "4 archives are being downloaded" in refused.text
        for released in waiting:
            released.set()
        assert [answer.result().status_code for answer in sent] == [200] * exports.MOST_AT_ONCE


def test_an_archive_that_fails_leaves_room_for_the_next(client: TestClient) -> None:
    answers = [client.get(exports.PATH, params={"runs": "gone"}) for _ in range(exports.MOST_AT_ONCE + 1)]
    assert {answer.status_code for answer in answers} == {409}
