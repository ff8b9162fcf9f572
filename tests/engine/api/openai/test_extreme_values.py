"""Extreme values of every field: refused by the field's name, recorded as they are answered, alone in a batch."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from engine.api.openai.calls import Caller
from engine.api.openai.embeddings import EmbeddingRequest
from engine.api.openai.requests import ChatRequest, CompletionRequest
from engine.api.openai.server import server_of
from tests.engine.api.openai.conftest import Api
from tests.engine.api.openai.test_batches import BODIES, CHAT, COMPLETIONS, EMBEDDINGS, Client, client, line

KINDS: dict[str, type[msgspec.Struct]] = {
    COMPLETIONS: CompletionRequest, CHAT: ChatRequest, EMBEDDINGS: EmbeddingRequest
}  # fmt: skip
VALUES: tuple[Any, ...] = (
    (1 << 24) + 1, 1 << 40, 10**30, -(10**30), 1e308, "a" * 5_000, "\0", ["a" * 5_000], [""], {"5": 1e308}, {}, [],
    {"type": "function", "function": {"name": "a"}}, {"type": "json_object"}, None, True,
)  # fmt: skip
FIELDS = [
    (path, name)
    for path, kind in KINDS.items()
    for name in kind.__struct_encode_fields__
    if name not in ("stream", "model")
]
NULL_IN_OPENAI = {
    COMPLETIONS: (
        "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n", "presence_penalty", "seed", "stop",
        "stream", "stream_options", "temperature", "top_p",
    ),
    CHAT: (
        "frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "metadata", "n",
        "presence_penalty", "seed", "stop", "store", "stream", "stream_options", "temperature", "top_logprobs", "top_p",
    ),
}  # fmt: skip
"""Fields that OpenAI's description of its API lets be null."""

__all__ = ["client"]


@pytest.fixture(autouse=True)
def template(api: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(api.bench.model.loaded()[0], "chat_template", "{{ messages[0].content }}")
    yield


def body(path: str, name: str, value: Any) -> dict[str, Any]:
    """A body whose other fields are right; few tokens, unless more are asked for."""
    asked = {**BODIES[path], name: value}
    return asked | ({"max_tokens": 3} if name == "max_completion_tokens" else {})


@pytest.mark.parametrize(("path", "name"), FIELDS)
def test_what_is_refused_is_recorded_with_the_same_words_and_names_its_field(api: Api, path: str, name: str) -> None:
    traffic = server_of(api.bench).traffic
    for value in VALUES:
        answer = api.ask(path, body(path, name, value))
        assert answer.status < 500, (value, answer.body)
        if answer.status == 200:
            continue
        error = answer.json["error"]
        assert traffic.rows(1)[0].error == error["message"]
        assert error["param"] == name, (value, error)


@pytest.mark.parametrize("path", KINDS)
def test_a_line_with_an_extreme_value_is_answered_for_itself(client: Client, path: str) -> None:
    """As a call with the same body would be."""
    drawn = [(name, value) for of, name in FIELDS if of == path for value in VALUES]
    refused = [one for one in drawn if client.api.ask(path, body(path, *one)).status != 200]
    lines = [line("first", path), *(line(json.dumps(one)[:512], path, **body(path, *one)) for one in refused)]
    done = client.ended(client.start([*lines, line("last", path)], path)["id"])
    assert done["status"] == "completed"
    assert {one["custom_id"] for one in client.lines(done["output_file_id"])} == {"first", "last"}
    assert len(client.lines(done["error_file_id"])) == len(refused) > 20


def test_a_defect_in_one_line_leaves_the_others(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Caller.begin

    async def broken(self: Caller, endpoint: Any, given: bytes, *rest: Any) -> Any:
        if b"worst" in given:
            raise ZeroDivisionError
        return await begin(self, endpoint, given, *rest)

    monkeypatch.setattr(Caller, "begin", broken)
    done = client.ended(client.start([line("a"), line("b", prompt="worst"), line("c")])["id"])
    assert (done["status"], done["request_counts"]["failed"]) == ("completed", 1)
    (bad,) = client.lines(done["error_file_id"])
    assert (bad["custom_id"], bad["response"]["status_code"]) == ("b", 500)


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, names in NULL_IN_OPENAI.items() for name in names])
def test_null_is_the_default_where_openai_takes_it(api: Api, path: str, name: str) -> None:
    without = {key: value for key, value in BODIES[path].items() if key != name} | {"temperature": 0}
    found = [api.ask(path, asked) for asked in (without, {**without, name: None})]
    assert [one.status for one in found] == [200, 200], found[1].body
    choices = [one.json["choices"] for one in found]
    assert name in ("seed", "temperature") or choices[0] == choices[1]


HELD = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": "b"}}}


@pytest.mark.parametrize("form", [{"type": "json_object"}, HELD])
@pytest.mark.parametrize("other", [{"json_schema": {"const": "a"}}, {"json_schema": {}}, {"grammar": 'root ::= "a"'}])
def test_of_two_forms_of_an_answer_none_is_dropped_unsaid(api: Api, form: Any, other: dict[str, Any]) -> None:
    answer = api.ask(CHAT, {**BODIES[CHAT], "response_format": form, **other})
    assert (answer.status, answer.json["error"]["param"]) == (400, "response_format")


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_that_is_too_long_is_the_fault_of_its_messages(api: Api, stream: bool) -> None:
    long = {"messages": [{"role": "user", "content": "a " * 600}], "stream": stream}
    for asked in (api.ask(CHAT, long), api.ask(CHAT, long, prefer="respond-async")):
        if asked.status == 202:
            asked = api.ask(f"/v1/jobs/{asked.json['id']}?wait=30")
        error = asked.json["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
