"""POST /tokenize and /detokenize, GET /tokenizer_info: what lm-eval and clients of vLLM and llama-server ask."""

from base64 import b64decode
from typing import Any

import pytest

from tests.engine.api.openai.conftest import Answer, Api

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"


def param(answer: Answer) -> Any:
    assert answer.status == 400, answer.body
    return answer.json["error"]["param"]


def ids(api: Api, **asked: Any) -> list[int]:
    answer = api.ask("/tokenize", asked)
    assert answer.status == 200, answer.body
    found: list[int] = answer.json["tokens"]
    assert answer.json["count"] == len(found) and answer.json["max_model_len"] == 512
    return found


def test_text_and_ids_there_and_back(api: Api) -> None:
    assert ids(api, prompt="Once upon</s>") == [1, 2404, 636, 2]
    bare = ids(api, prompt="Once upon", add_special_tokens=False)
    assert bare == [2404, 636]
    assert api.ask("/detokenize", {"tokens": bare}).json == {"prompt": " Once upon"}
    for wrong in ([1 << 30], [-1], [10**30], [5] * 300_000):
        assert param(api.ask("/detokenize", {"tokens": wrong})) == "tokens"


def test_the_whole_vocabulary_is_answered_at_once(api: Api) -> None:
    own, sent = api.bench.model.loaded()[0].vocabulary, api.ask("/vocabulary").json
    assert tuple(b64decode(piece) for piece in sent["pieces"]) == own.pieces
    assert (bytes(sent["kinds"]), sent["names"]) == (own.kinds, {str(token): name for token, name in own.names.items()})
    assert (sent["bos"], sent["add_bos"], sent["add_space_prefix"]) == (own.bos, own.add_bos, own.add_space_prefix)


@pytest.mark.parametrize("is_stream", [False, True])
def test_candidates_have_their_ids_where_ids_are_asked_for(api: Api, is_stream: bool) -> None:
    asked = {"prompt": "Once upon", "max_tokens": 3, "temperature": 0, "logprobs": 2, "stream": is_stream}
    plain = api.ask("/v1/completions", asked)
    answer = api.ask("/v1/completions", {**asked, "return_token_ids": True})
    with_ids = [one["choices"][0] for one in (answer.events if is_stream else [answer.json]) if one["choices"]]
    without = [one["choices"][0] for one in (plain.events if is_stream else [plain.json]) if one["choices"]]
    assert not any("content" in choice["logprobs"] for choice in without)
    entries = [entry for choice in with_ids for entry in choice["logprobs"]["content"]]
    assert [entry["id"] for entry in entries] == [token for choice in with_ids for token in choice["token_ids"]]
    assert all(entry["top_logprobs"][0]["id"] == entry["id"] for entry in entries)  # greedy
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_llama_servers_name_begins_without_special_tokens(api: Api) -> None:
    assert ids(api, content="Once upon") == [2404, 636]
    assert ids(api, content="Once upon", add_special_tokens=True) == ids(api, prompt="Once upon") == [1, 2404, 636]
    assert ids(api, content="", add_special_tokens=False) == []


def test_a_chat_has_the_ids_of_its_rendered_text(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = api.bench.model.loaded()[0]
    asked = [{"role": "user", "content": "Once"}, {"role": "user", "content": [{"type": "text", "text": " upon"}]}]
    answer = api.ask("/tokenize", {"messages": asked})
    assert answer.status == 400 and "chat template" in answer.json["error"]["message"]
    monkeypatch.setattr(engine, "chat_template", TEMPLATE)
    assert ids(api, messages=asked) == engine.tokenize("user: Onceuser:  upon")


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "content": "a"}, "prompt"),
        ({"prompt": "a", "messages": []}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"content": ["a"]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"prompt": "a", "add_special_tokens": "no"}, "add_special_tokens"),
    ],
)
def test_a_wrong_field_is_named(api: Api, asked: object, named: str) -> None:
    assert param(api.ask("/tokenize", asked)) == named


def test_another_model_is_unknown(api: Api) -> None:
    answer = api.ask("/tokenize", {"prompt": "a", "model": "gpt-5"})
    assert (answer.status, answer.json["error"]["code"]) == (404, "model_not_found")


def test_the_special_tokens_are_named_as_the_tokenizer_reads_them(api: Api) -> None:
    found = api.ask("/tokenizer_info").json
    assert (found["bos_token"], found["eos_token"], found["add_bos_token"]) == ("<s>", "</s>", True)
    for name, ids in (("<s>", [1]), ("</s>", [2])):
        assert api.ask("/tokenize", {"prompt": name, "add_special_tokens": False}).json["tokens"] == ids
    assert (found["model_max_length"], found["chat_template"]) == (512, None)
