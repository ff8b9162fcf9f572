"""Servers that are down, slow, broken or hostile: each is reported, nothing hangs, and no key goes elsewhere."""

import json
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from engine.backends import answer, link, sent
from engine.calls import connect
from engine.errors import ConfigError, EngineError, PromptTooLong, QueueFull, ServerFailed
from engine.specs import Sampling
from tests.engine.backends.fake_server import COMPLETIONS, Request, chunk, engine_with, fake_server
from tests.processes import free_port


def failure(answering: Callable[[Request], None], **options: Any) -> EngineError:
    with engine_with(answering) as (engine, _):
        error = engine.submit("Once", **options).exception(60)
    assert error is not None
    return error


def test_a_server_that_is_down_is_named() -> None:
    with pytest.raises(ServerFailed, match="cannot be reached"):
        connect(f"http://127.0.0.1:{free_port()}")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host", "must be the address of a server"),
        ("file:///etc/passwd", "must be the address of a server"),
        ("/models/story.gguf", "must be the address of a server"),
        ("http://me:secret-key@host", "leave it out"),
        ("https://host/v1?api_key=secret-key", "leave it out"),
        ("https://host/v1#secret-key", "leave it out"),
        ("http://host:99999", "malformed"),
        ("http://ho st", "malformed"),
        ("http://host/../../secret path", "malformed"),
        ("http://", "malformed"),
        (7, "must be the address of a server"),
    ],
)
def test_an_address_that_is_none_or_holds_a_key_is_refused_before_anything_is_sent(url: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        connect(url)
    assert "secret-key" not in str(refused.value)


def test_a_key_comes_from_the_environment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="not the key itself"):
        connect("http://host", api_key_env="sk-1234-5678")
    with pytest.raises(ConfigError, match="MY_KEY has no key"):
        connect("http://host", api_key_env="MY_KEY")
    monkeypatch.setenv("MY_KEY", "sk-line\nbreak")
    with pytest.raises(ConfigError, match="MY_KEY has no key"):
        connect("http://host", api_key_env="MY_KEY")


def test_a_key_is_sent_to_its_server_and_never_follows_a_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-1234")
    with fake_server({}) as (elsewhere, stolen):

        def redirected(request: Request) -> None:
            request.text("", 307, Location=f"{elsewhere}/v1/models")

        with fake_server({"/v1/models": redirected}) as (address, seen):
            with pytest.raises(ServerFailed, match="redirects to") as failed:
                connect(address, api_key_env="MY_KEY")
            assert seen[0].headers["Authorization"] == "Bearer sk-1234"
        assert stolen == []
    assert "sk-1234" not in str(failed.value)


def test_a_web_page_is_no_api() -> None:
    with (
        fake_server({"/v1/models": lambda request: request.text("<html>Welcome")}) as (address, _),
        pytest.raises(ServerFailed, match="text/html, not with JSON"),
    ):
        connect(address)


def test_a_refused_key_is_reported() -> None:
    def refuse(request: Request) -> None:
        request.json({"error": {"message": "Incorrect API key provided"}}, 401)

    with (
        fake_server({"/v1/models": refuse}) as (address, _),
        pytest.raises(ServerFailed, match="refuses the key, or asks for one .401.: Incorrect API key"),
    ):
        connect(address)


def test_a_model_that_the_server_has_not_is_reported_with_those_it_has() -> None:
    with fake_server({}) as (address, _), pytest.raises(ConfigError, match="has no model 'other'; it has 'm'"):
        connect(address, "other")


def test_a_cut_stream_fails_its_job_and_keeps_what_came() -> None:
    with engine_with(lambda request: request.events(chunk(" a"), chunk(" time"), cut=True)) as (engine, _):
        job = engine.submit("Once")
        error = job.exception(60)
        assert isinstance(error, ServerFailed) and "broke the answer off after 2 tokens" in str(error)
        assert job.steps.text == " a time"


def test_a_connection_that_the_server_has_closed_meanwhile_is_replaced() -> None:
    num_closed = 0

    def closing(request: Request) -> None:
        nonlocal num_closed
        if num_closed < 1:
            num_closed += 1
            request.close_connection = True  # without an answer
        else:
            request.events(chunk(" a", finish="length"))

    with engine_with(closing) as (engine, seen):
        assert engine.submit("Once").result(60).text == " a"
        assert len(seen) == 2


def test_a_server_that_closes_every_connection_fails_the_job() -> None:
    def closing(request: Request) -> None:
        request.close_connection = True

    error = failure(closing)
    assert isinstance(error, ServerFailed) and "connection broke" in str(error)


def test_a_stream_without_an_end_stops_at_the_limit() -> None:
    def endless(request: Request) -> None:
        try:
            while True:
                request.events(*[chunk(" a")] * 100, cut=True)
        except OSError:
            pass  # the client has left

    with engine_with(endless) as (engine, _):
        done = engine.submit("Once", max_tokens=5).result(60)
    assert (done.finish_reason, done.text) == ("length", " a" * 5)


def test_a_stream_of_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "MOST_EMPTY", 50)
    assert "without a token" in str(failure(lambda request: request.events(*[chunk("")] * 60)))


def test_a_server_that_falls_silent_fails_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "NEXT_WITHIN_S", 0.05)
    left = threading.Event()

    def silent(request: Request) -> None:
        request.events(chunk(" a"), cut=True)
        left.wait(60)

    error = failure(silent)
    left.set()
    assert isinstance(error, ServerFailed) and "did not send the next token within 0.05 s" in str(error)


def test_a_server_that_sends_nothing_but_comments_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "NEXT_WITHIN_S", 0.05)
    left = threading.Event()

    def commenting(request: Request) -> None:
        request.events(chunk(" a"), cut=True)
        with suppress(OSError):
            while not left.wait(0.005):
                request.wfile.write(b":\n\n")

    error = failure(commenting)
    left.set()
    assert isinstance(error, ServerFailed) and "did not send the next token within 0.05 s" in str(error)


def test_several_tokens_in_one_chunk_share_its_moment() -> None:
    given = {
        "tokens": [" a", " b"],
        "token_logprobs": [-0.1, -0.2],
        "top_logprobs": [{" a": -0.1}, {" b": -0.2}],
        "text_offset": [0, 2],
    }
    with engine_with(lambda request: request.events(chunk(" a b", finish="length", logprobs=given))) as (engine, _):
        steps = list(engine.submit("Once", top_k=2).result(60).steps)
    assert [(one.text, one.logprob, one.rank) for one in steps] == [(" a", -0.1, 1), (" b", -0.2, 1)]
    assert steps[0].elapsed_s > 0 and steps[1].elapsed_s == 0


def test_the_end_that_a_server_does_not_send_as_a_token_is_a_step_without_figures() -> None:
    with engine_with(lambda request: request.events(chunk(" a"), chunk("", finish="stop"))) as (engine, _):
        done = engine.submit("Once").result(60)
    last = done.steps[-1]
    assert (done.text, last.text, last.logprob) == (" a", "", None)
    assert done.steps.vocabulary.is_end(last.id)


@pytest.mark.parametrize(
    "given",
    [
        {"tokens": [" a"], "token_logprobs": [-1, -2], "top_logprobs": [{}]},
        {"tokens": [" a"], "token_logprobs": ["likely"], "top_logprobs": [{}]},
        {"tokens": [" a"], "token_logprobs": [0.7], "top_logprobs": [{}]},
        {"tokens": [7], "token_logprobs": [-1], "top_logprobs": [{}]},
        {"tokens": [" a"], "token_logprobs": [-1], "top_logprobs": [["b"]]},
        {"tokens": " a", "token_logprobs": [-1], "top_logprobs": [{}]},
        {"tokens": [" a"], "token_logprobs": [-1], "top_logprobs": [{str(n): -9.0 for n in range(3000)}]},
        {"content": [" a"]},
        {"content": [{"token": " a", "logprob": -1, "bytes": "32"}]},
        {"content": [{"token": " a", "logprob": -1, "bytes": [999]}]},
        {"content": [{"id": -5, "token": " a", "logprob": -1}]},
        {"content": [{"id": 1 << 28, "token": " a", "logprob": -1}]},
    ],
)
def test_log_probabilities_of_a_wrong_shape_fail_the_job(given: object) -> None:
    assert isinstance(failure(lambda request: request.events(chunk(" a", logprobs=given)), top_k=2), ServerFailed)


@pytest.mark.parametrize("event", ["{", "[1]", "7", '"' + "[" * 3000])
def test_an_event_that_is_no_object_fails_the_job(event: str) -> None:
    assert isinstance(failure(lambda request: request.events(event)), ServerFailed)


def test_an_event_beyond_the_limit_fails_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "MOST_EVENT_BYTES", 1000)
    assert "more than 1,000 bytes" in str(failure(lambda request: request.events("x" * 100_000)))


def test_an_error_within_a_stream_is_reported() -> None:
    assert "ran out of memory" in str(
        failure(lambda request: request.events(chunk(" a"), {"error": {"message": "ran out of\x1b memory\n"}}))
    )


def test_a_prompt_that_is_too_long_there_is_reported_as_here() -> None:
    def refuse(request: Request) -> None:
        request.json({"error": {"message": "9 tokens", "code": "context_length_exceeded"}}, 400)

    assert isinstance(failure(refuse), PromptTooLong)


def test_a_busy_server_is_asked_again_after_the_time_it_asks_for() -> None:
    refusals = iter((429, 503))

    def busy(request: Request) -> None:
        status = next(refusals, None)
        if status is None:
            request.events(chunk(" a", finish="length"))
        else:
            request.json({"error": {"message": "busy"}}, status, Retry_After="0.01")

    with engine_with(busy) as (engine, seen):
        assert engine.submit("Once").result(60).text == " a"
        assert len(seen) == 3


@pytest.mark.parametrize("retry_after", ["", "soon", "86400"])
def test_a_server_that_stays_busy_fails_the_job(retry_after: str) -> None:
    def busy(request: Request) -> None:
        headers = {"Retry_After": retry_after} if retry_after else {}
        request.json({"error": {"message": "rate limit"}}, 429, **headers)

    error = failure(busy)
    assert isinstance(error, QueueFull) and "rate limit" in str(error)


@pytest.mark.parametrize("name", ["type", "code"])
def test_a_quota_that_is_used_up_is_no_busy_server(name: str) -> None:
    answer = {"error": {"message": "You exceeded your current quota.", name: "insufficient_quota"}}
    error = failure(lambda request: request.json(answer, 429))
    assert isinstance(error, ServerFailed) and not error.is_away
    assert "no quota left for this key: You exceeded your current quota." in str(error)


def test_what_a_server_cannot_do_is_refused_and_not_left_out() -> None:
    with engine_with(lambda request: request.events(chunk(" a", finish="length"))) as (engine, seen):
        for sampling, named in (
            (Sampling(min_p=0.3), "min_p"),
            (Sampling(top_k=5), "top_k"),
            (Sampling(repeat_penalty=1.2), "repeat_penalty"),
            (Sampling(grammar='root ::= "a"'), "grammar"),
            (Sampling(logit_bias=((5, 1.0),)), "logit_bias"),
        ):
            with pytest.raises(ConfigError, match=named):
                engine.submit("Once", sampling)
        with pytest.raises(ConfigError, match="must be a text"):
            engine.submit([1, 2, 3])
        with pytest.raises(ConfigError, match="cannot score a prompt"):
            engine.submit("Once", prompt_logprobs=True)
        assert seen == []
        job = engine.submit("Once", Sampling(temperature=0.5), top_k=50, stages=True)
        job.result(60)
        assert (job.request.top_k, job.request.stages) == (2, False)
        assert (job.sampling.top_k, job.sampling.min_p) == (0, 0.0)  # what a server has not is off, and noted as off
        assert json.loads(json.dumps(seen[0].body))["temperature"] == 0.5 and "min_p" not in seen[0].body


def test_hostile_texts_are_kept_as_they_are() -> None:
    text = "<script>alert(1)</script>\u202e\x00"
    with engine_with(lambda request: request.events(chunk(text, finish="length"))) as (engine, _):
        assert engine.submit("Once").result(60).text == text


def test_more_tokens_in_an_event_than_any_server_sends_fail_the_job() -> None:
    texts = [" a"] * (sent.MOST_TOKENS + 1)
    given = {"tokens": texts, "token_logprobs": [-0.5] * len(texts)}
    events = [chunk("".join(texts), logprobs=given)]
    assert "4,097 tokens in one event" in str(failure(lambda request: request.events(*events), max_tokens=5000))


def test_a_text_beyond_the_limit_fails_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "MOST_TEXT_BYTES", 50)
    error = failure(lambda request: request.events(chunk("x" * 40), chunk("y" * 40)))
    assert "longer than 50 bytes" in str(error)


def test_a_date_to_wait_for_is_not_shown_as_seconds() -> None:
    def busy(request: Request) -> None:
        request.json({"error": {"message": "busy"}}, 429, Retry_After="Wed, 21 Oct 2026 07:28:00 GMT")

    assert "asks to wait" not in str(failure(busy))


def test_unknown_paths_that_redirect_are_not_there() -> None:
    def redirect(request: Request) -> None:
        request.text("", 302, Location="/login")

    answers = {
        "/props": redirect,
        "/api/version": redirect,
        COMPLETIONS: lambda request: request.events(chunk(" a", finish="length")),
    }
    with fake_server(answers) as (address, _), connect(address) as engine:
        assert engine.submit("Once").result(60).text == " a"


def test_a_connection_that_is_reset_is_replaced() -> None:
    num_reset = 0

    def resetting(request: Request) -> None:
        nonlocal num_reset
        if num_reset < 1:
            num_reset += 1
            request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request.close_connection = True
            request.connection.close()
        else:
            request.events(chunk(" a", finish="length"))

    with engine_with(resetting) as (engine, seen):
        assert engine.submit("Once").result(60).text == " a"
        assert len(seen) == 2
