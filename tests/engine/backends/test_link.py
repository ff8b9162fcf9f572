"""Links to servers: which connections carry the requests of jobs, with what beside them."""

import json
from collections.abc import Sequence

import pytest

from engine.calls import connect
from tests.engine.backends.fake_server import COMPLETIONS, MODELS, Request, chunk, columns, engine_with, fake_server


def send_chunked(request: Request, events: Sequence[object]) -> None:
    """Answer with a stream whose connection stays open; each event, [DONE] and the end are written by themselves."""
    request.send_response(200)
    request.send_header("Content-Type", "text/event-stream")
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()
    for text in (*map(json.dumps, events), "[DONE]"):
        data = f"data: {text}\n\n".encode()
        request.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
    request.wfile.write(b"0\r\n\r\n")


@pytest.mark.parametrize("num_after", [1, 3])
@pytest.mark.parametrize("max_tokens", [2, 3, 50])
def test_one_connection_serves_one_job_after_another(max_tokens: int, num_after: int) -> None:
    tokens = [chunk(text, logprobs=columns(text, -0.5)) for text in (" a", " b")]
    ends = [chunk("", finish="length")] * num_after
    with engine_with(lambda request: send_chunked(request, [*tokens, *ends]), num_sequences=1) as (engine, seen):
        for _ in range(4):
            assert engine.submit("Once", max_tokens=max_tokens).result(30).text == " a b"
    assert len(seen) == 4
    assert len({one.client_address for one in seen}) == 1


@pytest.mark.parametrize("num_more", [5, 500])
def test_what_comes_after_a_stop_string_is_not_waited_for(num_more: int) -> None:
    def going_on(request: Request) -> None:
        send_chunked(request, [chunk(" a")] * num_more)

    with engine_with(going_on, num_sequences=1) as (engine, _):
        for _ in range(2):
            done = engine.submit("Once", stop=" a a", max_tokens=1000).result(30)
            assert (done.finish_reason, done.text) == ("stop", "")


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
            assert engine.submit("Once", max_tokens=1).result(30).text == " a"
    assert {one.path.partition("/v1")[0] for one in seen} <= {root, f"{root}/props", f"{root}/api/version"}
    assert {one.headers["Authorization"] for one in seen} == {"Bearer the-key"}
