"""Streamlit's own files from memory: the same bytes, cached for ever, nothing else; and sockets that do not wait."""

import json
import re
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


def test_the_elements_that_most_pages_show_are_preloaded_with_all_that_they_import() -> None:
    parts = json.loads((front_end.STATIC / "manifest.json").read_text())
    named = re.findall(r'href="\./([^"]+)"', front_end.preloads().decode())
    assert len(named) == len(set(named))
    sources = {part["file"]: key for key, part in parts.items()}
    for name in front_end.PRELOADED:
        assert sum(Path(sources[file]).stem == name for file in named) == 1, name
    for file in named:
        assert {parts[key]["file"] for key in parts[sources[file]].get("imports", ())} <= set(named)


def test_another_manifest_is_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_end, "STATIC", tmp_path)
    for content in (None, "[]", "{", '{"a": {}}'):
        if content is not None:
            (tmp_path / "manifest.json").write_text(content)
        assert front_end.preloads() == b""
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
