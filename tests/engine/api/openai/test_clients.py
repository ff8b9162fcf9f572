"""Clients of the API: their names, how many requests of each may be open, and what becomes of the jobs of one that
leaves."""

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.openai import guard, server
from engine.api.openai.clients import ClientLimit, client_of, origin_of
from engine.api.openai.errors import ApiError
from engine.api.openai.server import server_of
from engine.api.openai.traffic import KEPT_CALLS, KEPT_MINOR, LONGEST_ENDPOINT, CallRow, Traffic
from engine.errors import ConfigError
from engine.protocol import Engine
from engine.settings import Settings
from engine.specs import MAX_CLIENT_CHARACTERS, PoolSpec, Request
from engine.workbench.machine_lease import EXCLUSIVE, Kind
from engine.workbench.trials import Draft
from engine.workbench.workbench import Workbench
from tests.engine.api.openai.conftest import KEY, Api
from tests.fake_engine import open_fake
from tests.waiting import until

PATH = "/v1/completions"
LONG: dict[str, Any] = {"prompt": "Once", "max_tokens": 450, "ignore_eos": True}


def scope_of(agents: list[bytes], address: str) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": PATH,
        "client": (address, 1),
        "headers": [(b"user-agent", one) for one in agents],
    }


@pytest.mark.slow
@given(st.lists(st.binary(max_size=300), max_size=3), st.text(max_size=200))
def test_any_client_has_a_name_of_printable_characters(agents: list[bytes], address: str) -> None:
    name = client_of(scope_of(agents, address))
    assert len(name) <= MAX_CLIENT_CHARACTERS and (name.isprintable() or not name)
    assert origin_of(scope_of(agents, address)).lane == "api"


def test_a_client_keeps_its_name_and_others_have_another() -> None:
    one = scope_of([b"lm-eval"], "127.0.0.1")
    assert client_of(one) == client_of({**one, "client": ("127.0.0.1", 2)}) == "lm-eval 127.0.0.1"
    others = scope_of([b"guidellm"], "127.0.0.1"), scope_of([b"lm-eval"], "10.0.0.1"), {**one, "client": None}
    assert len({client_of(other) for other in (one, *others)}) == 4


def test_more_requests_at_once_than_a_client_may_have_are_refused_until_one_ends() -> None:
    """Of one client; another one is let in, and so are requests that compute nothing."""
    sent: list[dict[str, Any]] = []

    async def scene() -> None:
        goes_on = asyncio.Event()

        async def app(_scope: Any, _receive: Any, send: Any) -> None:
            await goes_on.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        async def send(message: Any) -> None:
            sent.append(message)

        traffic = Traffic()
        limit, one = ClientLimit(app, most=2, traffic=traffic), scope_of([b"a"], "")
        two = [asyncio.ensure_future(limit(one, None, send)) for _ in range(2)]  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await limit(one, None, send)  # type: ignore[arg-type]
        assert sent[0]["status"] == 429 and (b"retry-after", b"1") in sent[0]["headers"]
        assert json.loads(sent[1]["body"])["error"]["type"] == "rate_limit_error"
        (row,) = traffic.rows()
        assert (row.client, row.endpoint, row.state) == ("a", PATH, "failed") and "2 requests open" in row.error
        others = scope_of([b"b"], ""), {**one, "method": "GET"}
        more = [asyncio.ensure_future(limit(other, None, send)) for other in others]  # type: ignore[arg-type]
        two[0].cancel()
        await asyncio.sleep(0)
        more.append(asyncio.ensure_future(limit(one, None, send)))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        goes_on.set()
        await asyncio.gather(*more, two[1])
        assert [message["status"] for message in sent[2:]] == [200] * 4
        assert not limit._open

    run(scene())


def test_a_client_that_is_refused_again_and_again_leaves_the_calls_of_others_in_sight() -> None:
    traffic = Traffic()
    traffic.add("one", PATH, "m", b"{}")
    for number in range(KEPT_CALLS + 1):
        traffic.refuse("eager", f"{PATH}{number}\x1b[31m" + "x" * 1_000, ApiError(429, "too many"))
    rows = traffic.rows()
    assert [row.client for row in rows] == ["eager"] * KEPT_MINOR + ["one"]
    assert rows[0].number == traffic.num_calls == KEPT_CALLS + 2
    assert all(row.endpoint.isprintable() and len(row.endpoint) == LONGEST_ENDPOINT for row in rows[:-1])


def run(scene: Any) -> None:
    """Run a coroutine in a thread of its own."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(scene)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


@contextmanager
def another_server(home: Path, model: Path, **settings: str) -> Iterator[Api]:
    """Start a server with settings of its own."""
    bench = Workbench(Settings.from_environment({"LOGITBENCH_HOME": str(home), **settings}))
    try:
        bench.model_manager.load(model)
        until(lambda: bench.model.engine is not None, "the model was not loaded")
        server_of(bench).start(0, KEY)
        port = server_of(bench).port
        assert port is not None
        yield Api(port, bench)
    finally:
        server_of(bench).stop()
        bench.close()


def test_the_limit_of_the_settings_holds_for_streams_too(tmp_path: Path, story_model: Path) -> None:
    with another_server(tmp_path, story_model, LOGITBENCH_API_REQUESTS="1") as api:
        stream = opened(api, head_and_body(LONG | {"stream": True}, agent="one"))
        until(lambda: calls(api) and calls(api)[0].figures.num_generated, "it does not run")
        refused = api.ask(PATH, {"prompt": "a"}, user_agent="one")
        assert refused.status == 429 and refused.headers["retry-after"] == "1"
        assert refused.json["error"]["code"] == "rate_limit_exceeded"
        assert calls(api)[0].state == "failed"
        assert api.ask(PATH, {"prompt": "a", "max_tokens": 1}, user_agent="two").status == 200
        assert api.ask("/v1/models", user_agent="one").status == 200
        stream.close()
        until(lambda: api.ask(PATH, {"prompt": "a", "max_tokens": 1}, user_agent="one").status == 200, "it stays full")


def test_while_the_model_loads_it_asks_to_come_again(tmp_path: Path, story_model: Path) -> None:
    goes_on = threading.Event()

    def open_later(model: str, spec: PoolSpec, **options: Any) -> Engine:
        goes_on.wait()
        return open_fake(model, spec, **options)

    bench = Workbench(Settings.from_environment({"LOGITBENCH_HOME": str(tmp_path)}), open_later)
    try:
        bench.model_manager.load(story_model)
        server_of(bench).start(0, KEY)
        port = server_of(bench).port
        assert port is not None
        api = Api(port, bench)
        for answer in (api.ask(PATH, {"prompt": "a"}), api.ask("/health")):
            assert answer.status == 503 and int(answer.headers["retry-after"]) > 0
            assert answer.json["error"]["code"] == "model_not_ready"
        goes_on.set()
        until(lambda: api.ask(PATH, {"prompt": "a", "max_tokens": 1}).status == 200, "it is never ready")
    finally:
        goes_on.set()
        server_of(bench).stop()
        bench.close()


@pytest.mark.parametrize("kind", sorted(EXCLUSIVE))
def test_a_benchmark_answers_later_and_begins_though_calls_run(api: Api, kind: Kind) -> None:
    client = opened(api, head_and_body(LONG | {"stream": True}))
    assert client.recv(100).startswith(b"HTTP/1.1 200")
    if kind == "measurement":
        hang_up(client)
        until(lambda: is_stopped(api), "it goes on")
    with api.bench.machine.acquire("A benchmark", kind):
        answer = api.ask(PATH, {"prompt": "a"})
        assert answer.status == 503 and int(answer.headers["retry-after"]) > 0
        assert answer.json["error"]["code"] == "machine_busy"
        assert calls(api)[0].state == "failed"
    assert api.ask(PATH, {"prompt": "a", "max_tokens": 1}).status == 200
    client.close()
    until(lambda: is_idle(api), "it goes on")


@pytest.mark.slow
def test_what_calls_leave_in_the_history_has_a_limit(tmp_path: Path, story_model: Path) -> None:
    """One megabyte is that of some hundred answers with 20 candidates; a starred one stays, and one without API."""
    with another_server(tmp_path, story_model, LOGITBENCH_API_HISTORY_MB="1") as api:
        history = api.bench.history
        assert history is not None
        own = api.bench.trials.submit(Draft("Once", request=Request(max_tokens=4)))
        many = LONG | {"max_tokens": 30, "n": 32}
        starred = api.ask(PATH, many).headers["x-logitbench-trial"].split(",")[0]
        until(lambda: history.trial(starred) and history.trial(own.id), "they are not stored")
        history.marks.star("trial", [starred], True)
        for _ in range(9):
            last = api.ask(PATH, many).headers["x-logitbench-trial"].split(",")[-1]
        until(lambda: history.trial(last), "it is not stored")
        until(lambda: len(history.recent(1000)) < 200, "more than the limit is kept")
        assert history.trial(starred) and history.trial(own.id) and history.trial(last)
        assert len(history.recent(1000)) > 50


@pytest.mark.slow
def test_calls_are_not_kept_where_the_limit_is_nothing(tmp_path: Path, story_model: Path) -> None:
    with another_server(tmp_path, story_model, LOGITBENCH_API_HISTORY_MB="0") as api:
        own = api.bench.trials.submit(Draft("Once", request=Request(max_tokens=4)))
        trial = api.bench.trials.trial(api.ask(PATH, {"prompt": "a"}).headers["x-logitbench-trial"])
        assert not trial.draft.is_kept and trial.done()
        until(lambda: api.bench.history and api.bench.history.trial(own.id), "it is not stored")
        assert api.bench.history is not None and len(api.bench.history.recent(100)) == 1


# clients that leave


def head_and_body(asked: dict[str, Any], agent: str = "leaver") -> bytes:
    body = json.dumps(asked).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\nUser-Agent: {agent}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def opened(api: Api, sent: bytes, buffer: int = 0) -> socket.socket:
    client = socket.socket()
    if buffer:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    client.settimeout(60)
    client.connect(("127.0.0.1", api.port))
    client.sendall(sent)
    return client


def calls(api: Api) -> list[CallRow]:
    return server_of(api.bench).traffic.rows()


def is_idle(api: Api) -> bool:
    engine = api.bench.model.engine
    return engine is not None and engine.num_open == 0 and not api.bench.machine.busy_with


def is_stopped(api: Api) -> bool:
    """Whether the last call was stopped, and nothing is open."""
    return is_idle(api) and calls(api)[0].state == "stopped"


def hang_up(client: socket.socket) -> None:
    """End a connection at once with a reset, as a killed process does."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


WAYS: dict[str, Callable[[socket.socket], object]] = {
    "reset": hang_up,
    "closed": socket.socket.close,
    "half closed": lambda client: client.shutdown(socket.SHUT_WR),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_one_that_leaves_before_its_request_is_whole_starts_nothing(api: Api, way: str, share: float) -> None:
    whole, before = head_and_body(LONG), len(calls(api))
    client = opened(api, whole[: int(len(whole) * share)])
    WAYS[way](client)
    assert api.ask("/health").status == 200
    assert len(calls(api)) == before and is_idle(api)
    client.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_the_job_of_one_that_leaves_while_it_waits_is_cancelled(api: Api, way: str, stream: bool, n: int) -> None:
    engine = api.bench.model.engine
    assert engine is not None
    engine.pause()
    try:
        client = opened(api, head_and_body(LONG | {"stream": stream, "n": n}))
        until(lambda: engine.num_open == n, "it does not wait")
        WAYS[way](client)
        until(lambda: is_stopped(api), "it still waits")
        assert calls(api)[0].figures.num_generated == 0
        client.close()
    finally:
        engine.resume()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stream", [False, True])
def test_the_job_of_one_that_leaves_while_its_prompt_is_computed_is_cancelled(api: Api, way: str, stream: bool) -> None:
    engine = api.bench.model.engine
    assert engine is not None
    with engine.held():
        client = opened(api, head_and_body(LONG | {"prompt": [5] * 400, "cache_prompt": False, "stream": stream}))
        until(lambda: engine.num_open == 1, "it was not submitted")
        WAYS[way](client)
        until(lambda: all(trial.job.is_cancelled for trial in live(api)), "it is not cancelled")
    until(lambda: is_stopped(api), "it goes on")
    assert calls(api)[0].figures.num_generated < 450
    client.close()


def live(api: Api) -> list[Any]:
    return [trial for trial in api.bench.trials._trials.values() if not trial.done()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", [1, 3])
def test_the_job_of_one_that_leaves_its_stream_is_cancelled(api: Api, way: str, n: int) -> None:
    client = opened(api, head_and_body(LONG | {"stream": True, "n": n}))
    assert client.recv(100).startswith(b"HTTP/1.1 200")
    WAYS[way](client)
    until(lambda: is_stopped(api), "it goes on")
    assert calls(api)[0].figures.num_generated < 450 * n
    client.close()


@pytest.mark.slow
def test_one_that_never_reads_holds_nothing_but_its_connection_and_not_for_ever(
    tmp_path: Path, story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job ends by itself, however much was to be sent, and others are answered meanwhile."""
    monkeypatch.setattr(server, "STALLED_MS", 1000)
    with another_server(tmp_path, story_model, LOGITBENCH_API_REQUESTS="1") as api:
        asked = LONG | {"stream": True, "n": 8, "logprobs": 20}
        client = opened(api, head_and_body(asked, agent="sleeper"), buffer=2048)
        until(lambda: calls(api) and calls(api)[0].state in ("done", "stopped"), "its jobs do not end")
        assert api.ask(PATH, {"prompt": "a", "max_tokens": 1}).status == 200
        until(
            lambda: api.ask(PATH, {"prompt": "a", "max_tokens": 1}, user_agent="sleeper").status == 200,
            "its connection is kept",
        )
        assert is_idle(api)
        client.close()


def test_one_that_reads_slowly_gets_all(api: Api) -> None:
    client = opened(api, head_and_body(LONG | {"max_tokens": 60, "stream": True, "logprobs": 20}), buffer=2048)
    got = b""
    while not got.endswith(b"0\r\n\r\n"):
        got += client.recv(997)
    assert got.count(b"data: ") == 62 and b"data: [DONE]" in got
    client.close()


def test_a_body_that_does_not_come_is_not_awaited_for_ever(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY", guard.BODY._replace(within_s=0.2))
    client = opened(api, head_and_body(LONG)[:-10])
    answer = b""
    while b"body_timeout" not in answer:
        answer += client.recv(10_000)
    assert answer.startswith(b"HTTP/1.1 408")
    client.close()


def test_one_that_has_sent_its_body_may_be_answered_later_than_a_body_may_come(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "BODY", guard.BODY._replace(within_s=0.05))
    answer = api.ask(PATH, {"prompt": "Once", "max_tokens": 200, "ignore_eos": True})
    assert answer.json["usage"]["completion_tokens"] == 200


def test_a_server_that_does_not_start_is_an_error(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_scope: object, _receive: object, _send: object) -> None:
        raise ValueError("no start")

    monkeypatch.setattr(server, "make_app", lambda *_bench, key, pages: broken)
    second = server.ApiServer(api.bench)
    with pytest.raises(ConfigError, match="did not start"):
        second.start(0, KEY)
    assert second.port is None
    monkeypatch.undo()
    second.start(0, KEY)
    assert second.port is not None
    second.stop()
