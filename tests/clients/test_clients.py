"""Libraries that other programs call models with: each says the same, and what the engine says itself."""

import json
import math
from typing import Any

import pytest

from engine import Pool, Sampling
from pages.parts.traffic.call_code import METHODS, as_openai
from tests.clients.conftest import KEY, Clients

CHAT = "user: Where does the fox live?\nassistant:"
"""What all clients ask, in the template of the server's model."""
NUM_TOKENS = 4
LEGACY = ("tokens", "token_logprobs", "top_logprobs")
TALK = {"messages": [{"role": "user", "content": "Where does the 'fox' live?"}], "max_tokens": NUM_TOKENS}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
FOREIGN = {"store": False, "response_format": {"type": "text"}, "max_completion_tokens": 2, "echo": True, "best_of": 1}
COPIED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "Once upon\na time", "max_tokens": NUM_TOKENS}),
    (
        "/v1/completions",
        {"prompt": [40, 41], "max_tokens": 2, "tools": [TOOL], "top_logprobs": 1, "min_p": 0.1, **FOREIGN},
    ),
    ("/v1/completions", {"prompt": "Once", "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", TALK),
    ("/v1/chat/completions", {**TALK, **FOREIGN, "suffix": "x", "logprobs": True, "top_logprobs": 2, "seed": 1}),
    ("/v1/chat/completions", {**TALK, "tools": [TOOL], "tool_choice": "none", "chat_template_kwargs": {"mood": "sad"}}),
]
"""Requests that any client may send, with fields that only the other endpoint has."""
SIGNATURES = """
import inspect, json, openai
client = openai.OpenAI()
found = {}
for name in METHOD_NAMES:
    method = client
    for part in name.split("."):
        method = getattr(method, part)
    found[name] = list(inspect.signature(method).parameters)
print(json.dumps(found))
"""


class Truth:
    """What the engine answers to the two prompts that all clients send, greedily."""

    def __init__(self, pool: Pool) -> None:
        self.chat, self.logprobs = self._of(pool, CHAT)
        self.completion, self.completion_logprobs = self._of(pool, "Once upon a time")

    @staticmethod
    def _of(pool: Pool, prompt: str) -> tuple[str, list[float]]:
        done = pool.submit(prompt, Sampling(temperature=0), max_tokens=NUM_TOKENS, top_k=1).result()
        return done.text, [step.logprob for step in done.steps if step.logprob is not None]


@pytest.fixture(scope="module")
def truth(pool: Pool) -> Truth:
    return Truth(pool)


def close(found: list[float]) -> Any:
    return pytest.approx(found, rel=1e-4)


@pytest.mark.parametrize("name", ["clients", "inspect"])
def test_copied_code_runs_in_openais_client(clients: Clients, name: str) -> None:
    programs = [as_openai(where, {"model": "story"} | body, clients.served.address, KEY) for where, body in COPIED]
    said = clients.program("-c", "\n".join(programs), environment=name).splitlines()
    assert sum(line.startswith("ChatCompletion(") for line in said) == 3
    assert len(said) >= len(COPIED)


@pytest.mark.parametrize("name", ["clients", "inspect"])
def test_each_method_of_openais_client_has_the_parameters_of_its_endpoint(clients: Clients, name: str) -> None:
    program = SIGNATURES.replace("METHOD_NAMES", repr([method for method, _ in METHODS.values()]))
    found = json.loads(clients.program("-c", program, environment=name))
    for method, fields in METHODS.values():
        assert fields <= set(found[method]), method


@pytest.mark.parametrize("name", ["clients", "inspect"])
def test_openai_in_both_versions(clients: Clients, truth: Truth, name: str) -> None:
    found = clients.client("with_openai", name)
    legacy = found["completion"]["choices"][0]
    assert legacy["text"] == "Once upon a time" + truth.completion
    assert legacy["logprobs"]["token_logprobs"][0] is None
    assert legacy["logprobs"]["token_logprobs"][-NUM_TOKENS:] == close(truth.completion_logprobs)
    for token, logprob, top in zip(*(legacy["logprobs"][key][1:] for key in LEGACY), strict=True):
        assert top[token] == logprob and 3 <= len(top) <= 4
    assert [index for index, _ in found["several"]] == [0, 1, 2, 3]
    assert found["several"][0][1] == found["several"][1][1]

    whole = found["chat"]["choices"][0]
    assert (whole["message"]["content"], whole["finish_reason"]) == (truth.chat, "length")
    assert [entry["logprob"] for entry in whole["logprobs"]["content"]] == close(truth.logprobs)
    assert all(len(entry["top_logprobs"]) == 2 for entry in whole["logprobs"]["content"])

    *chunks, last = found["stream"]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(chunk["choices"][0]["delta"]["content"] or "" for chunk in chunks) == truth.chat
    assert all(chunk["usage"] is None for chunk in chunks) and last["choices"] == []
    assert last["usage"]["completion_tokens"] == NUM_TOKENS
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + NUM_TOKENS

    assert found["parsed"]["animal"] in ("fox", "hen") and isinstance(found["parsed"]["is_old"], bool)
    check_tools(found["tools"])
    batch = found["batch"]
    assert (batch["status"], batch["bad"], batch["left"]) == ("completed", ["n1", "max_tokens"], [])
    assert batch["good"] == ["n0", found["several"][0][1]]
    sizes, products = zip(*(found["embeddings"][form] for form in ("base64", "float", "cut")), strict=True)
    assert sizes == (384, 384, 64)
    assert products[0] == pytest.approx(products[1], abs=1e-6) and 0 < products[0] < 1
    assert found["errors"] == {
        "key": ["AuthenticationError", None, "invalid_api_key"],
        "model": ["NotFoundError", "model", "model_not_found"],
        "type": ["BadRequestError", "max_tokens", None],
        "length": ["BadRequestError", "prompt", "context_length_exceeded"],
        "route": ["NotFoundError", None, "unknown_url"],
    }


def check_tools(found: dict[str, Any]) -> None:
    """Check the calls that OpenAI's client has read, whole and from streams."""
    assert found["parsed"]["animal"] in ("fox", "hen")
    assert [choice["finish_reason"] for choice in found["choices"]] == ["tool_calls"] * 4
    calls = [choice["message"]["tool_calls"] for choice in found["choices"]]
    assert all(len(some) == 1 and some[0]["id"] and some[0]["type"] == "function" for some in calls)
    demanded, streamed, chosen, chosen_streamed = (some[0]["function"] for some in calls)
    assert all(function["name"] == "Animal" for function in (demanded, streamed, chosen))
    assert json.loads(demanded["arguments"]) == json.loads(streamed["arguments"]) == found["parsed"]
    assert json.loads(chosen["arguments"]) == {"animal": "hen", "is_old": True}
    assert chosen_streamed["arguments"] == chosen["arguments"]
    assert found["after"]["choices"][0]["finish_reason"] == "length"


def test_langchain(clients: Clients, truth: Truth) -> None:
    found = clients.client("with_langchain")
    assert found["text"] == found["streamed"] == truth.chat
    assert found["completion"] == truth.completion
    assert found["logprobs"] == close(truth.logprobs)
    assert found["usage"] == found["stream_usage"]
    assert found["usage"]["output_tokens"] == NUM_TOKENS
    assert found["animal"] in ("fox", "hen") and found["by_call"] in ("fox", "hen")
    calls = {how: (call["name"], call["args"]) for how, (call,) in found["calls"].items()}
    assert calls["demanded"] == calls["streamed"]
    assert calls["chosen"] == ("Animal", {"animal": "hen"})
    assert found["after"]


def test_litellm(clients: Clients, truth: Truth) -> None:
    found = clients.client("with_litellm")
    assert found["text"] == found["streamed"] == truth.chat
    assert found["completion"] == truth.completion
    assert found["logprobs"] == close(truth.logprobs)
    assert found["num_tokens"] == found["stream_tokens"] == NUM_TOKENS


def test_instructor(clients: Clients) -> None:
    found = clients.client("with_instructor")
    for mode in ("JSON_SCHEMA", "TOOLS"):
        assert found[mode]["animal"] in ("fox", "hen") and found[mode]["legs"] in (2, 4)


def test_llama_index(clients: Clients, truth: Truth) -> None:
    found = clients.client("with_llama_index")
    assert found["text"] == found["streamed"] == truth.chat
    assert found["completion"] == found["stream_completion"] == truth.completion
    assert found["logprobs"] == close(truth.logprobs)


def test_inspect(clients: Clients, truth: Truth) -> None:
    found = clients.client("with_inspect", "inspect")
    assert found["texts"][0] == truth.chat
    assert found["logprobs"][0] == close(truth.logprobs)
    assert all(math.isfinite(logprob) for row in found["logprobs"] for logprob in row)
    assert found["top"] == [[2] * NUM_TOKENS] * 2 and found["num_tokens"] == [NUM_TOKENS] * 2
    assert found["accuracy"] == sum("fox" in text for text in found["texts"]) / 2
