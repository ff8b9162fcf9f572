"""Streamlit's own files from memory: the same bytes, cached for ever, nothing else; and sockets that do not wait."""

import json
import socket
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from pages.parts import front_end


@pytest.fixture
def client() -> TestClient:
    beneath = Route("/{path:path}", lambda request: PlainTextResponse("beneath"), methods=["GET", "POST"])
    return TestClient(Starlette(routes=[beneath], middleware=front_end.middleware()))


def test_the_files_of_the_manifest_are_served_as_they_are(client: TestClient) -> None:
    parts = json.loads((front_end.STATIC / "manifest.json").read_text())
    for name in (parts["index.html"]["file"], *parts["index.html"]["css"]):
        for _ in range(2):
            answer = client.get(f"/{name}")
            assert answer.content == (front_end.STATIC / name).read_bytes()
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["content-type"].startswith("text/")


@pytest.mark.parametrize("path", ["/", "/index.html", "/manifest.json", "/static/../manifest.json", "/history"])
def test_everything_else_is_passed_on(client: TestClient, path: str) -> None:
    assert client.get(path).text == "beneath"


def test_the_modules_of_most_elements_come_first_with_all_that_they_import() -> None:
    parts = json.loads((front_end.STATIC / "manifest.json").read_text())
    sources = {f"./{part['file']}": key for key, part in parts.items()}
    first, imported = front_end.first_modules(), front_end.imported_first()
    assert sorted(Path(sources[path]).stem for path in first) == sorted(front_end.FIRST)
    assert len(imported) == len(set(imported)) and set(first) <= set(imported)
    for path in imported:
        assert {f"./{parts[key]['file']}" for key in parts[sources[path]].get("imports", ())} <= set(imported)


def test_another_manifest_is_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_end, "STATIC", tmp_path)
    for content in (None, "[]", "{", '{"a": {}}'):
        if content is not None:
            (tmp_path / "manifest.json").write_text(content)
        assert front_end.first_modules() == front_end.imported_first() == ()
        assert (
            TestClient(
                Starlette(
                    routes=[Route("/a", lambda request: PlainTextResponse("beneath"))],
                    middleware=[Middleware(front_end.FromMemory)],
                )
            )
            .get("/a")
            .text
            == "beneath"
        )


def test_connections_inherit_that_nothing_waits() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        front_end.answer_at_once()
        with socket.create_connection(listening.getsockname()):
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
