"""Parsers of what other programs send to the API, and of what a model answers there."""

import asyncio
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request

from engine.api.openai import requests as asked
from engine.api.openai.batch_lines import asked_of, counted_requests
from engine.api.openai.embeddings import EmbeddingRequest
from engine.api.openai.file_store import FileStore
from engine.api.openai.files import Files
from engine.api.openai.tool_calls import ToolForm, parser_of
from engine.exchange.prompt_files import PromptFile

TEMPLATE = "{{ tools }}<tool_call>"
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "now", "parameters": PARAMETERS}}]
CALL = '{"name": "weather", "arguments": {"place": "Rome"}}'
COMMON = {
    "model": "story", "n": 2, "stop": ["\n"], "seed": 5, "temperature": 0.5, "top_p": 0.9, "logit_bias": {"5": -100},
    "presence_penalty": 0.1, "store": False, "stream": True, "stream_options": {"include_usage": True},
}  # fmt: skip


def parse_completion(content: bytes) -> None:
    """Body of /v1/completions."""
    request = asked.decoded(content, asked.CompletionRequest)
    asked.unknown_fields(content, asked.CompletionRequest)
    request.prompts()
    _ = request.stops, request.scores_prompt
    request.sampling([1, 2])


def parse_chat(content: bytes) -> None:
    """Body of /v1/chat/completions."""
    request = asked.decoded(content, asked.ChatRequest)
    asked.unknown_fields(content, asked.ChatRequest)
    checked = request.checked()
    checked.options(checked.tool_use(TEMPLATE))
    for message in checked.messages:
        message.plain()
    _ = request.stops, request.scores_prompt
    checked.sampling([1, 2])


def parse_embedding(content: bytes) -> None:
    """Body of /v1/embeddings."""
    asked.several(asked.decoded(content, EmbeddingRequest).input, "input", 100)


def parse_batch(content: bytes) -> None:
    """Input of a batch; ids of its lines and errors are written as its output is."""
    file = io.BytesIO(content)
    counted_requests(file)
    file.seek(0)
    for line in asked_of(file, "/v1/completions", lambda _: False):
        msgspec.json.encode((line.custom_id, str(line.error), msgspec.Raw(line.body or b"null")))


def parse_form(content: bytes) -> None:
    """POST of /v1/files: its content type in the first line, then its body."""
    kind, _, body = content.partition(b"\n")
    scope = {"type": "http", "method": "POST", "path": "/v1/files", "app": None, "headers": [(b"content-type", kind)]}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def no_user(_: str) -> None:
        return None

    with tempfile.TemporaryDirectory() as folder, _quiet(), ThreadPoolExecutor(1) as thread:
        created = Files(FileStore(Path(folder)), no_user).create(Request(scope, receive))
        thread.submit(asyncio.run, created).result()  # a test's own thread may have an event loop, of a browser


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the form parser's warnings, and Starlette's of a part that was cut short, whose file is collected."""
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def parse_answer(content: bytes) -> None:
    """Text of an answer with calls of tools, piece by piece, in each form."""
    text = content.decode("utf-8", "replace")
    for form in ToolForm:
        parser = parser_of(form, {"weather"}, 3)
        said = [piece for start in range(0, len(text), 7) for piece in parser.push(text[start : start + 7])]
        for piece in (*said, *parser.end()):
            msgspec.json.encode(piece)


def parse_prompts(content: bytes) -> None:
    """File of prompts, with an ending and without."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("given.jsonl", "given.txt", "given"):
            Path(folder, name).write_bytes(content)
            with PromptFile(Path(folder, name)) as prompts:
                for prompt in prompts:
                    assert (prompt.prompt is None) + (prompt.messages is None) + (prompt.error is None) == 2


def completions() -> list[bytes]:
    """Valid bodies of /v1/completions."""
    prompts: tuple[object, ...] = ("Once", ["Once", "Twice"], [5, 6, 7], [[5, 6], [7]])
    bodies = [{**COMMON, "prompt": prompt, "logprobs": 3, "max_tokens": 4} for prompt in prompts]
    return [json.dumps(body).encode() for body in bodies]


def chats() -> list[bytes]:
    """Valid bodies of /v1/chat/completions."""
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Rome"}'}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}, {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]  # fmt: skip
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": PARAMETERS}}
    wishes: tuple[dict[str, Any], ...] = (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "weather"}}},
        {"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": False},
        {"response_format": schema, "logprobs": True, "top_logprobs": 3, "chat_template_kwargs": {"thinks": True}},
    )
    return [json.dumps({**COMMON, "messages": messages, **wish}).encode() for wish in wishes]


def embeddings() -> list[bytes]:
    """Valid bodies of /v1/embeddings."""
    inputs: tuple[object, ...] = ("a", ["a", "b"], [5, 6], [[5], [6]])
    return [json.dumps({"input": each, "encoding_format": "base64", "dimensions": 8}).encode() for each in inputs]


def batches() -> list[bytes]:
    """Valid input of batches."""
    lines = [
        {"custom_id": f"n{number}", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once"}}
        for number in range(3)
    ]
    return [b"".join(json.dumps(line).encode() + b"\n" for line in lines)]


def forms() -> list[bytes]:
    """Valid uploads."""
    kind, field = b"multipart/form-data; boundary=b\n", b'--b\r\nContent-Disposition: form-data; name="'
    file = field + b'file"; filename="a.jsonl"\r\nContent-Type: application/jsonl\r\n\r\n' + batches()[0]
    return [kind + field + b'purpose"\r\n\r\nbatch\r\n' + file + b"\r\n--b--\r\n"]


def answers() -> list[bytes]:
    """Answers with calls, as models write them."""
    return [
        f"I look.<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>".encode(),
        f"[TOOL_CALLS][{CALL},{CALL}]".encode(),
        f"<|python_tag|>{CALL};{CALL}".encode(),
        CALL.replace("arguments", "parameters").encode(),
    ]


def prompt_files() -> list[bytes]:
    """Valid files of prompts."""
    chat = {"id": 5, "messages": [{"role": "user", "content": "Hi"}]}
    rows = ["Once", {"prompt": "Twice", "id": "a"}, {"prompt": [5, 6]}, chat]
    return ["\n".join(json.dumps(row) for row in rows).encode(), b"Once\nTwice\n"]
