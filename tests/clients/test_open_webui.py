"""Requests in the shape in which Open WebUI sends them; the program itself needs other versions of what is here."""

import json
from typing import Any

import pytest

from tests.clients.conftest import Served

MESSAGES = [
    {"role": "system", "content": "You tell stories."},
    {"role": "user", "content": [{"type": "text", "text": "Where does the fox live?"}]},
]
FROM_PAGE = {
    "model": "story",
    "messages": MESSAGES,
    "stream": True,
    "stream_options": {"include_usage": True},
    "params": {},
    "files": [],
    "filter_ids": [],
    "tool_ids": [],
    "tool_servers": [],
    "features": {"voice": False, "image_generation": False, "code_interpreter": False, "web_search": False},
    "variables": {"{{USER_NAME}}": "Ada", "{{CURRENT_DATE}}": "2026-11-26", "{{USER_LANGUAGE}}": "en-GB"},
    "model_item": {"id": "story", "name": "story", "object": "model", "owned_by": "openai", "urlIdx": 0, "actions": []},
    "session_id": "cG9zdGNhcmRzAAAB",
    "chat_id": "5f0c1c5e-8a51-4f4e-9a3b-0f1d0c2b7a11",
    "id": "b8c8f6f2-53c1-4a60-9b0f-6f5f0f7f2b77",
    "parent_id": "0d9a3a52-9f5a-4c53-8e5b-2f6f7d4f1c90",
    "background_tasks": {"title_generation": True, "tags_generation": True, "follow_up_generation": True},
    "max_tokens": 8,
}
"""A chat as the page sends it; Open WebUI's own server passes on the first four fields, and parameters."""
WITH_PARAMETERS = {
    "model": "story",
    "messages": MESSAGES,
    "stream": True,
    "temperature": 0.8,
    "top_p": 0.9,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.0,
    "seed": 7,
    "stop": ["\n\n"],
    "logit_bias": {"5": -1},
    "max_tokens": 8,
    "top_k": 40,
    "min_p": 0.05,
    "repeat_penalty": 1.1,
    "mirostat": 0,
    "num_ctx": 2048,
    "function_calling": "native",
    "reasoning_effort": "low",
}
TITLE = {
    "model": "story",
    "messages": [
        {
            "role": "user",
            "content": "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n"
            '### Output:\nJSON format: { "title": "your concise title here" }\n'
            "### Chat History:\n<chat_history>\nUSER: Where does the fox live?\n</chat_history>",
        }
    ],
    "stream": False,
    "max_completion_tokens": 8,
    "metadata": {"task": "title_generation", "chat_id": "5f0c1c5e-8a51-4f4e-9a3b-0f1d0c2b7a11", "task_body": {}},
}


def test_the_list_of_models(served: Served) -> None:
    status, body = served.ask("/v1/models")
    found = json.loads(body)
    assert status == 200 and found["object"] == "list"
    assert found["data"][0]["id"] == "story"
    assert all(one["object"] == "model" and one["owned_by"] for one in found["data"])


@pytest.mark.parametrize("body", [FROM_PAGE, WITH_PARAMETERS], ids=["from the page", "with parameters"])
def test_a_chat_is_streamed(served: Served, body: dict[str, Any]) -> None:
    status, answer = served.ask("/v1/chat/completions", body)
    assert status == 200, answer
    *events, done, rest = answer.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert all(chunk["object"] == "chat.completion.chunk" and chunk["model"] == "story" for chunk in chunks)
    usage = chunks.pop() if "stream_options" in body else None
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text and chunks[-1]["choices"][0]["finish_reason"] in ("length", "stop")
    if usage is not None:
        assert usage["choices"] == [] and usage["usage"]["completion_tokens"] <= 8


def test_a_title_is_generated(served: Served) -> None:
    status, body = served.ask("/v1/chat/completions", TITLE)
    found = json.loads(body)
    assert status == 200 and found["object"] == "chat.completion"
    assert found["choices"][0]["message"]["role"] == "assistant"
    assert found["usage"]["total_tokens"] == found["usage"]["prompt_tokens"] + found["usage"]["completion_tokens"]
