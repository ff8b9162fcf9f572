"""Links to servers: which connections carry the requests of jobs, with what beside them."""

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engine.backends import answer_stream, link
from engine.calls import connect
from engine.errors import ServerFailed
from tests.engine.backends.fake_server import COMPLETIONS, MODELS, Request, chunk, columns, engine_with, fake_server


def begin_chunks(request: Request) -> None:
    request.send_response(200)
    request.send_header("Content-Type", "text/event-stream")
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()


def write_chunk(request: Request, text: str) -> None:
    """Write an event by itself."""
    data = f"data: {text}\n\n".encode()
    request.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))


def send_chunked(request: Request, events: Sequence[object]) -> None:
    """Answer with a stream whose connection stays open; each event, [DONE] and the end are written by themselves."""
    begin_chunks(request)
    for text in (*map(json.dumps, events), "[DONE]"):
        write_chunk(request, text)
    request.wfile.write(b"0\r\n\r\n")


@pytest.mark.parametrize("num_after", [1, 3])
@pytest.mark.parametrize("max_tokens", [2, 3, 50])
def test_one_connection_serves_one_job_after_another(
    max_tokens: int, num_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "ENDS_WITHIN_S", 60)
    monkeypatch.setattr(answer_stream, "ENDS_WITHIN_S", 60)
    tokens = [chunk(text, logprobs=columns(text, -0.5)) for text in (" a", " b")]
    ends = [chunk("", finish="length")] * num_after
    with engine_with(lambda request: send_chunked(request, [*tokens, *ends]), num_sequences=1) as (engine, seen):
        for _ in range(4):
            assert engine.submit("Once", max_tokens=max_tokens).result(60).text == " a b"
    assert len(seen) == 4
    assert len({one.client_address for one in seen}) == 1


Ending = Callable[[Request, threading.Event], None]


def goes_silent(_request: Request, may_go: threading.Event) -> None:
    may_go.wait(60)


def breaks_off(request: Request, _may_go: threading.Event) -> None:
    request.wfile.write(b"40\r\ndata: {")
    request.close_connection = True


def reports_an_error(request: Request, may_go: threading.Event) -> None:
    write_chunk(request, json.dumps({"error": {"message": "out of memory"}}))
    may_go.wait(60)


def sends_no_json(request: Request, may_go: threading.Event) -> None:
    write_chunk(request, "{")
    may_go.wait(60)


@pytest.mark.parametrize("ending", [goes_silent, breaks_off, reports_an_error, sends_no_json])
@pytest.mark.parametrize(
    ("asked", "expected"),
    [({"max_tokens": 2}, ("length", " a b")), ({"max_tokens": 9, "stop": " b"}, ("stop", " a"))],
)
def test_a_whole_answer_needs_nothing_that_comes_after_it(
    asked: dict[str, Any], expected: tuple[str, str], ending: Ending
) -> None:
    may_go = threading.Event()

    def whole(request: Request) -> None:
        begin_chunks(request)
        for text in (" a", " b"):
            write_chunk(request, json.dumps(chunk(text, logprobs=columns(text, -0.5))))
        ending(request, may_go)

    with engine_with(whole, num_sequences=1) as (engine, _):
        try:
            for _ in range(2):
                done = engine.submit("Once", **asked).result(60)
                assert (done.finish_reason, done.text) == expected
        finally:
            may_go.set()


@pytest.mark.parametrize("ending", [breaks_off, reports_an_error, sends_no_json])
def test_an_answer_that_misses_tokens_fails(ending: Ending) -> None:
    may_go = threading.Event()

    def partly(request: Request) -> None:
        begin_chunks(request)
        write_chunk(request, json.dumps(chunk(" a", logprobs=columns(" a", -0.5))))
        ending(request, may_go)

    with engine_with(partly) as (engine, _):
        job = engine.submit("Once", max_tokens=2)
        assert isinstance(job.exception(60), ServerFailed) and len(job.steps) == 1
        may_go.set()


def test_other_machines_are_asked_through_the_proxy_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = "http://models.example:8080"

    def answer(request: Request) -> None:
        send_chunked(request, [chunk(" a", finish="length", logprobs=columns(" a", -0.5, b=-1.5))])

    with fake_server({f"{root}/v1/models": MODELS, f"{root}{COMPLETIONS}": answer}) as (proxy, seen):
        monkeypatch.setenv("http_proxy", proxy.removeprefix("http://"))
        monkeypatch.setenv("SERVER_KEY", "the-key")
        with connect(root, api_key_env="SERVER_KEY") as engine:
            assert engine.submit("Once", max_tokens=1).result(60).text == " a"
    assert {one.path.partition("/v1")[0] for one in seen} <= {root, f"{root}/props", f"{root}/api/version"}
    assert {one.headers["Authorization"] for one in seen} == {"Bearer the-key"}
