"""Tokens of a text that is typed, over the web socket of a page: by the model that ships, the latest text first."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from engine.pool.pool import Pool
from engine.vocabulary import Vocabulary
from pages.parts import live
from tests.pages.harness import ScriptedBench, serving

PATIENCE_S = 60.0


@pytest.fixture
def bench(pool: Pool) -> ScriptedBench:
    made = ScriptedBench()
    made.tokenizer = pool
    return made


@pytest.fixture
def socket(bench: ScriptedBench) -> Iterator[ClientConnection]:
    with (
        serving(bench) as server,
        connect(f"ws://{server.host}{live.SOCKET_PATH}", origin=Origin(f"http://{server.host}")) as opened,
    ):
        yield opened


def ask(socket: ClientConnection, text: str, number: int = 1, **more: Any) -> None:
    socket.send(json.dumps({"jobs": {}, "text": {"field": "f", "number": number, "text": text, **more}}))


def receive(socket: ClientConnection) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(socket.recv(PATIENCE_S))["text"]
    return answer


def test_a_text_is_answered_with_its_ids_and_each_word_once(socket: ClientConnection, pool: Pool) -> None:
    text = "Once upon a time\nnaïve 🐈 </s>"
    ask(socket, text)
    answer = receive(socket)
    assert (answer["field"], answer["number"], answer["characters"]) == ("f", 1, len(text))
    assert answer["id"] == pool.tokenize(text)
    assert answer["count"] == len(answer["id"])
    words = {id: (text, bytes.fromhex(raw)) for id, text, raw, _ in answer["words"]}
    assert words.keys() == set(answer["id"])
    assert b"".join(words[id][1] for id in answer["id"]).decode().strip() == text
    ask(socket, text, 2)
    again = receive(socket)
    assert (again["id"], again["words"]) == (answer["id"], [])


def test_written_control_tokens_count_as_one_where_that_is_asked(socket: ClientConnection, pool: Pool) -> None:
    ask(socket, "a</s>", special=True)
    assert receive(socket)["id"] == pool.tokenize("a</s>", special=True)
    assert len(pool.tokenize("a</s>", special=True)) < len(pool.tokenize("a</s>"))


def test_of_a_long_text_all_tokens_are_counted_and_the_first_are_sent(socket: ClientConnection, pool: Pool) -> None:
    text = "🐈" * 3_000
    ask(socket, text)
    answer = receive(socket)
    ids = pool.tokenize(text)
    assert answer["count"] == len(ids) > live.MAX_TEXT_TOKENS
    assert answer["id"] == ids[: live.MAX_TEXT_TOKENS]


def test_an_error_is_answered_in_words_and_the_socket_stays(
    bench: ScriptedBench, socket: ClientConnection, pool: Pool
) -> None:
    bench.tokenizer = None
    ask(socket, "one")
    assert receive(socket) == {"field": "f", "number": 1, "characters": 3, "error": "No model is loaded."}
    bench.tokenizer = pool
    ask(socket, "one", 2)
    assert receive(socket)["id"] == pool.tokenize("one")


class Held:
    """A tokenizer that answers when a test lets it."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.asked: list[str] = []
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    @property
    def vocabulary(self) -> Vocabulary:
        return self._pool.vocabulary

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        self.asked.append(text)
        self.has_begun.set()
        assert self.may_go_on.wait(PATIENCE_S)
        return self._pool.tokenize(text, special=special)


def test_of_texts_that_wait_only_the_latest_is_tokenised(
    bench: ScriptedBench, socket: ClientConnection, pool: Pool
) -> None:
    bench.tokenizer = held = Held(pool)
    ask(socket, "one", 1)
    assert held.has_begun.wait(PATIENCE_S)
    for number, text in enumerate(("one t", "one tw", "one two"), start=2):
        ask(socket, text, number)
    socket.ping().wait(PATIENCE_S)  # all of them have arrived
    held.may_go_on.set()
    assert [receive(socket)["number"] for _ in range(2)] == [1, 4]
    assert held.asked == ["one", "one two"]


def test_a_file_that_is_not_loaded_is_asked_for_by_its_path(
    bench: ScriptedBench, socket: ClientConnection, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path | None] = []

    def tokenizer_of(path: Path | None) -> Pool:
        asked.append(path)
        return pool

    monkeypatch.setattr(bench, "tokenizer_of", tokenizer_of)
    ask(socket, "one", model="/models/other.gguf")
    receive(socket)
    ask(socket, "one")
    receive(socket)
    assert asked == [Path("/models/other.gguf"), None]
