"""What the API refuses, and how: OpenAI's form of errors, with the field at fault."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.api.openai import guard
from engine.api.openai.answers import Feed
from engine.api.openai.generation import Generator
from engine.pool import long_texts, texts
from engine.pool.pool import Pool
from tests.engine.api.openai.conftest import Answer, Api
from tests.waiting import until

PATH = "/v1/completions"


def error(answer: Answer, status: int) -> dict[str, Any]:
    assert answer.status == status, answer.body
    found: dict[str, Any] = answer.json["error"]
    assert found.keys() == {"message", "type", "param", "code"} and found["message"]
    return found


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1 << 40]}, "prompt"),
        ({"prompt": ["a"] * 257}, "prompt"),
        ({"prompt": ["a"] * 5, "n": 64}, "prompt"),
        ({"prompt": [5] * 600_000}, "prompt"),
        ({"prompt": "a", "logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"999999999": 1}}, "logit_bias"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "max_tokens": "5"}, "max_tokens"),
        ({"prompt": "a", "n": 10_000}, "n"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "top_p": 7}, "top_p"),
        ({"prompt": "a", "stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"prompt": "a", "stop": 5}, "stop"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"5": "x"}}, "logit_bias"),
        ({"prompt": "a", "stream_options": {"include_usage": 1}}, "stream_options"),
        ({"prompt": "a", "grammar": 'root ::= "a'}, "grammar"),
        ({"prompt": "a", "json_schema": {"type": "nothing"}}, "json_schema"),
        ([], None),
        ("a", None),
        (5, None),
    ],
)
def test_a_wrong_field_is_named(api: Api, asked: object, param: str | None) -> None:
    found = error(api.ask(PATH, asked), 400)
    assert found["param"] == param
    assert found["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b'{"prompt": "\xff"}', b"[" * 100_000])
def test_a_body_that_is_no_request_is_refused(api: Api, body: bytes) -> None:
    error(api.ask(PATH, body), 400)


@pytest.mark.parametrize(("method", "path"), [("POST", PATH), ("GET", "/v1/models")])
def test_a_request_that_asks_for_a_web_socket_is_answered_as_without(api: Api, method: str, path: str) -> None:
    headers = {"connection": "Upgrade", "upgrade": "websocket", "sec_websocket_version": "13"}
    answer = api.ask(path, {"prompt": "a", "max_tokens": 1}, method=method, sec_websocket_key="eHh4", **headers)
    assert answer.status == 200


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from(
        ["prompt", "stop", "logit_bias", "n", "seed", "stream", "json_schema", "messages", "model", "user"]
    ),
)
def test_no_value_of_a_field_is_a_defect(api: Api, value: Any, name: str) -> None:
    for path in (PATH, "/v1/chat/completions"):
        body = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1, name: value}
        answer = api.ask(path, body)
        assert answer.status < 500, answer.body
        assert answer.status == 200 or error(answer, answer.status)


def test_unknown_fields_are_ignored(api: Api) -> None:
    assert api.ask(PATH, {"prompt": "a", "max_tokens": 1, "best_of": 4, "suffix": None}).status == 200


def test_a_prompt_that_is_too_long_says_so(api: Api) -> None:
    for stream in (False, True):
        found = error(api.ask(PATH, {"prompt": [5] * 600, "stream": stream}), 400)
        assert (found["code"], found["param"]) == ("context_length_exceeded", "prompt")


def test_another_model_is_unknown(api: Api) -> None:
    assert error(api.ask(PATH, {"prompt": "a", "model": "gpt-5"}), 404)["code"] == "model_not_found"
    assert error(api.ask("/v1/models/gpt-5"), 404)["code"] == "model_not_found"
    for name in ("", "Qwen/Qwen3", "a/b/", "a%2Fb"):
        assert error(api.ask(f"/v1/models/{name}"), 404)["code"] == "model_not_found"
    assert api.ask("/v1/models/story").json["id"] == api.ask("/v1/models").json["data"][0]["id"] == "story"


def test_a_model_of_another_engine_is_found_by_a_name_with_slashes(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Generator, "model_id", "Qwen/Qwen3-0.6B")
    for path in ("Qwen/Qwen3-0.6B", "Qwen%2FQwen3-0.6B"):
        assert api.ask(f"/v1/models/{path}").json["id"] == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize("headers", [{"key": "wrong"}, {"key": ""}, {"authorization": "Basic abc"}])
def test_without_the_key_nothing_is_answered_but_health(api: Api, headers: dict[str, str]) -> None:
    for path in ("/v1/models", PATH, "/nowhere"):
        assert error(api.ask(path, **headers), 401)["code"] == "invalid_api_key"
    assert api.ask("/health", **headers).json == {"status": "ok"}


@pytest.mark.parametrize("headers", [{"origin": "https://evil.example"}, {"origin": "null"}, {"host": "evil.example"}])
def test_foreign_pages_and_hosts_are_refused(api: Api, headers: dict[str, str]) -> None:
    assert api.ask("/v1/models", **headers).status in (400, 403)


def test_large_bodies_are_refused_with_and_without_a_length(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY", guard.BODY._replace(most_bytes=1000))
    assert error(api.ask(PATH, {"prompt": "a" * 2000}), 413)["code"] == "body_too_large"
    connection = api.connect()
    pieces = (b'{"prompt": "', *[b"a" * 100] * 20, b'"}')
    connection.request("POST", PATH, iter(pieces), {"authorization": "Bearer a key for tests"}, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_while_no_model_is_loaded_it_asks_to_come_again(api: Api) -> None:
    manager = api.bench.model_manager
    path = manager.state.path
    assert path is not None
    manager.eject()
    try:
        for asked in (api.ask("/health"), api.ask(PATH, {"prompt": "a"}), api.ask("/v1/models")):
            assert error(asked, 503)["code"] == "model_not_ready"
            assert int(asked.headers["retry-after"]) > 0
    finally:
        manager.load(path)
        until(lambda: manager.state.engine is not None, "the model was not loaded")


def test_a_measurement_has_the_machine_to_itself(api: Api) -> None:
    with api.bench.machine.acquire("A measurement", "measurement"):
        answer = api.ask(PATH, {"prompt": "a"})
        assert error(answer, 503)["code"] == "machine_busy"
        assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize("path", [PATH, "/tokenize"])
def test_a_tokeniser_that_is_busy_with_another_text_asks_to_come_again(
    api: Api, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    engine = api.bench.model.engine
    assert isinstance(engine, Pool)
    for name, value in (("LONGEST_FOR_WORKER", 20), ("DEADLINE_S", 0.2)):
        monkeypatch.setattr(texts if name == "LONGEST_FOR_WORKER" else long_texts, name, value)
    asked = {"prompt": "Once upon a time there was", "max_tokens": 1}
    with engine._texts._long_texts._running()._lock:
        answer = api.ask(path, asked)
    assert error(answer, 429)["code"] == "queue_full" and int(answer.headers["retry-after"]) > 0
    monkeypatch.setattr(long_texts, "DEADLINE_S", 60)
    assert api.ask(path, asked).status == 200


def test_a_chat_needs_a_template(api: Api) -> None:
    found = error(api.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}), 400)
    assert "chat template" in found["message"]


@given(st.lists(st.text("ab", max_size=4), max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_a_stream_sends_what_cannot_be_the_beginning_of_a_stop(pieces: list[str], stops: list[str]) -> None:
    feed, sent, whole = Feed(stops), "", ""
    for piece in pieces:
        whole += piece
        sent += feed.push(piece)
        assert feed.num_sent == len(sent)
        if any(stop in whole for stop in stops):  # the engine ends here
            assert sent == whole[: min(whole.find(stop) for stop in stops if stop in whole)]
            return
        assert whole.startswith(sent)
        held = whole[len(sent) :]
        assert not held or any(stop.startswith(held) for stop in stops)
