"""The web socket of live tokens: what it sends, whom it refuses, and that nobody holds up anybody else."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from pages.parts import live
from pages.parts.live_ask import MAX_MESSAGE, MAX_TEXT, MOST_ASKED
from tests.pages.harness import END, ScriptedBench, ScriptedTrial, Server, serving
from tests.waiting import until

PATIENCE_S = 60.0


@pytest.fixture
def bench() -> ScriptedBench:
    made = ScriptedBench()
    made.trials["t"] = ScriptedTrial()
    return made


@pytest.fixture
def server(bench: ScriptedBench) -> Iterator[Server]:
    with serving(bench) as running:
        yield running


class GatedSocket:
    """A page's socket whose messages go no further before its gate is open."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.gate, self.is_waiting = asyncio.Event(), asyncio.Event()
        self.sent: list[dict[str, Any]] = []

    def ask(self, **jobs: int) -> None:
        self.asked.put_nowait(json.dumps({"jobs": jobs}))

    async def receive_text(self) -> str:
        return await self.asked.get()

    async def send_text(self, text: str) -> None:
        self.is_waiting.set()
        await self.gate.wait()
        self.sent.append(json.loads(text))


def page(server: Server, **options: Any) -> ClientConnection:
    address = f"ws://{server.host}{live.SOCKET_PATH}"
    made: ClientConnection = connect(address, origin=Origin(f"http://{server.host}"), max_size=None, **options)
    return made


def ask(socket: ClientConnection, **jobs: int) -> None:
    socket.send(json.dumps({"jobs": jobs}))


def receive(socket: ClientConnection) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(socket.recv(PATIENCE_S))
    return message


def receive_to_end(socket: ClientConnection) -> list[dict[str, Any]]:
    messages = [receive(socket)]
    while "end" not in messages[-1]:
        messages.append(receive(socket))
    return messages


def ids_in(messages: list[dict[str, Any]]) -> list[int]:
    return [token for message in messages for token in message.get("steps", {}).get("id", [])]


def test_tokens_arrive_while_they_are_decoded(bench: ScriptedBench, server: Server) -> None:
    trial = bench.trials["t"]
    with page(server) as socket:
        ask(socket, t=0)
        assert receive(socket)["live"] is True
        trial.go_on(1)
        first = receive(socket)
        assert first["steps"]["first"] == 0
        assert len(first["steps"]["id"]) == 1
        trial.go_on()
        trial.finish("It stopped.")
        rest = receive_to_end(socket)
        assert ids_in([first, *rest]) == trial.steps.ids
        assert rest[-1]["end"]["sentence"] == "It stopped."
        states = [message["status"]["state"] for message in rest if "status" in message]
        assert states[-1] == "done"


def test_prompt_goes_before_the_first_step(bench: ScriptedBench, server: Server) -> None:
    trial = bench.trials["long"] = ScriptedTrial(prompt="once upon a time " * 100)
    trial.go_on(ids=[END] * 3)
    trial.finish()
    with page(server) as socket:
        ask(socket, long=0)
        messages = receive_to_end(socket)
    prompt = [token for message in messages for token in message.get("prompt", {}).get("id", [])]
    assert prompt == trial.prompt_steps.ids
    first_step = next(place for place, message in enumerate(messages) if "steps" in message)
    assert all("prompt" not in message for message in messages[first_step + 1 :])
    assert messages[0]["live"] is False


def test_a_page_that_comes_back_goes_on_where_it_was(bench: ScriptedBench, server: Server) -> None:
    trial = bench.trials["t"]
    trial.go_on(30)
    with page(server) as socket:
        ask(socket, t=0)
        early = [receive(socket)]
        while len(ids_in(early)) < 30:
            early.append(receive(socket))
    trial.go_on()
    trial.finish()
    with page(server) as socket:
        ask(socket, t=30)
        rest = receive_to_end(socket)
    assert next(message for message in rest if "steps" in message)["steps"]["first"] == 30
    assert ids_in(early) + ids_in(rest) == trial.steps.ids


def test_each_text_travels_once_and_none_is_missing(bench: ScriptedBench, server: Server) -> None:
    trial = bench.trials["t"]
    trial.go_on()
    trial.finish()
    with page(server) as socket:
        ask(socket, t=0)
        messages = receive_to_end(socket)
    batches = [message[part] for message in messages for part in ("prompt", "steps") if part in message]
    words = [word for batch in batches for word in batch["words"]]
    sent = [word[0] for word in words]
    assert len(sent) == len(set(sent))
    needed = {token for batch in batches for token in batch["id"]}
    needed |= {token for batch in batches for row in batch.get("top_id", []) for token in row}
    assert needed <= set(sent)
    vocabulary = trial.vocabulary
    for token, text, raw, kind in words:
        expected = (vocabulary.text(token), vocabulary.pieces[token].hex(), vocabulary.kinds[token])
        assert (text, raw, kind) == expected


def test_texts_come_to_a_page_that_asks_anew_while_they_wait_for_their_turn(bench: ScriptedBench) -> None:
    trial, neighbour = bench.trials["t"], ScriptedTrial()
    bench.trials["first"] = neighbour
    for each in (trial, neighbour):
        each.go_on(5)
        each.finish()
    socket = GatedSocket()

    async def talk() -> None:
        page = asyncio.create_task(live.Page(cast("WebSocket", socket), bench, bench, bench.words).serve())
        socket.ask(first=0)
        await socket.is_waiting.wait()
        for _time in range(2):
            socket.ask(t=0)
            await asyncio.sleep(0.2)
        socket.gate.set()
        while sum("end" in message for message in socket.sent) < 2:
            await asyncio.sleep(0.01)
        page.cancel()
        await asyncio.gather(page, return_exceptions=True)

    # Playwright runs a loop of its own in the thread of the tests.
    with ThreadPoolExecutor(1) as other:
        other.submit(asyncio.run, asyncio.wait_for(talk(), PATIENCE_S)).result()
    batches = [message[part] for message in socket.sent for part in ("prompt", "steps") if part in message]
    known = {(batch["v"], word[0]) for batch in batches for word in batch["words"]}
    assert {(batch["v"], token) for batch in batches for token in batch["id"]} <= known


def test_many_changes_become_few_messages(bench: ScriptedBench, server: Server) -> None:
    trial = bench.trials["t"]
    with page(server) as socket:
        ask(socket, t=0)
        receive(socket)
        for _ in range(600):
            trial.go_on(ids=[END])
        trial.finish()
        messages = receive_to_end(socket)
    assert len(ids_in(messages)) == 600
    assert len(messages) < 300


def test_an_unknown_trial_ends_with_an_error(server: Server) -> None:
    with page(server) as socket:
        ask(socket, nobody=7)
        message = receive(socket)
    assert message["job"] == "nobody"
    assert "Unknown trial" in message["end"]["error"]


def test_a_fault_of_ours_is_reported_and_fails_no_neighbour(bench: ScriptedBench, server: Server) -> None:
    class Broken(ScriptedTrial):
        def status(self) -> dict[str, Any]:
            raise KeyError("state")

    bench.trials["broken"] = Broken()
    bench.trials["t"].finish()
    with page(server) as socket:
        ask(socket, broken=0, t=0)
        ends = {message["job"]: message["end"] for message in (receive(socket), receive(socket)) if "end" in message}
    assert "internal error" in ends["broken"]["error"]
    assert ends["t"]["error"] == ""


def test_several_trials_and_more_of_them_on_one_socket(bench: ScriptedBench, server: Server) -> None:
    bench.trials["u"] = ScriptedTrial()
    for trial in bench.trials.values():
        trial.go_on()
        trial.finish()
    with page(server) as socket:
        ask(socket, t=0)
        receive_to_end(socket)
        ask(socket, u=0, t=100)
        ended: dict[str, list[int]] = {}
        while len(ended) < 2:
            message = receive(socket)
            ended.setdefault(message["job"], []) if "end" in message else None
    assert set(ended) == {"t", "u"}


def test_a_page_that_does_not_read_holds_up_nobody(bench: ScriptedBench, server: Server) -> None:
    trial = bench.trials["t"]
    for _ in range(40):
        trial.go_on(ids=[END] * 100)
    with page(server, close_timeout=0.1) as deaf, page(server) as reader:
        for _ in range(8):
            ask(deaf, t=0)
        ask(reader, t=0)
        trial.finish()
        assert len(ids_in(receive_to_end(reader))) == 4000


def test_flips_of_a_token_are_answered_and_are_none_where_they_are_not_known(
    bench: ScriptedBench, server: Server
) -> None:
    trial = bench.trials["t"]
    trial.go_on(6)
    trial.finish()
    with page(server) as socket:
        ask(socket, t=0)
        receive_to_end(socket)
        found = []
        for job, step in (("t", 2), ("nobody", 1), ("t", 3)):
            socket.send(json.dumps({"jobs": {}, "flips": {"job": job, "step": step}}))
            if job == "t":
                found.append(receive(socket))
    text = trial.vocabulary.text(trial.steps.ids[2])
    limit = {"parameter": "temperature", "is_above": True, "value": 0.9, "id": trial.steps.ids[2], "text": text}
    assert found[0] == {"job": "t", "flips": {"step": 2, "found": [limit]}}
    assert found[1] == {"job": "t", "flips": {"step": 3, "found": []}}


def test_a_page_that_goes_is_forgotten(bench: ScriptedBench, server: Server) -> None:
    trial = bench.trials["t"]
    with page(server) as socket:
        ask(socket, t=0)
        receive(socket)
        assert trial.num_listeners == 1
    until(lambda: trial.num_listeners == 0, "it never happened", PATIENCE_S)
    trial.go_on(3)


def test_the_server_ends_while_a_trial_streams(bench: ScriptedBench, server: Server) -> None:
    trial = bench.trials["t"]
    stopped = threading.Event()

    def stream() -> None:
        while not stopped.wait(0.005):
            trial.go_on(ids=[END])

    decoding = threading.Thread(target=stream)
    decoding.start()
    try:
        with page(server) as socket:
            ask(socket, t=0)
            receive(socket)
            server.stop()
            with pytest.raises(ConnectionClosed):
                while True:
                    receive(socket)
    finally:
        stopped.set()
        decoding.join()
        server.start()


@pytest.mark.parametrize(
    "message",
    [
        json.dumps({"latency": True}),
        json.dumps({"jobs": {"t": -1}}),
        json.dumps({"jobs": {"t": 0}, "more": 1}),
        json.dumps({"jobs": {}, "flips": {"job": "t", "step": -1}}),
        "not JSON",
        b"bytes",
        json.dumps({"jobs": {f"trial {number}": 0 for number in range(MOST_ASKED + 1)}}),
        json.dumps({"jobs": {}, "text": {"field": "f", "number": 0, "text": "x" * (MAX_TEXT + 1)}}),
        json.dumps({"jobs": {}, "text": {"field": "f", "number": 0, "text": "x", "model": "a\0b"}}),
        '{"jobs": {}, "text": {"field": "f", "number": 0, "text": "\\ud800"}}',
        " " * MAX_MESSAGE + '{"jobs": {}}',
    ],
    ids=[
        "no jobs",
        "negative",
        "unknown key",
        "no step",
        "not JSON",
        "bytes",
        "too many",
        "long text",
        "no path",
        "half a character",
        "too long",
    ],
)
def test_a_wrong_message_closes_the_socket(server: Server, message: str | bytes) -> None:
    with page(server) as socket:
        socket.send(message)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(PATIENCE_S)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == live.POLICY_VIOLATION
