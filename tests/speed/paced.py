"""A server of encoded answers in a process of its own: each stream gets a token with ten candidates at a fixed pace."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

import numpy as np

from tests.speed.peers import ROOT

NUM_TOKENS, NUM_CANDIDATES, NUM_WORDS = 500, 10, 4_000
FIRST_S, GAP_S = 0.02, 1 / 125
KINDS = {"llama-server": "/completion", "completions": "/v1/completions", "chat": "/v1/chat/completions"}
"""Each kind with the path of its streams: llama-server's own, and OpenAI's in its legacy form and of chats."""
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TAKES_ONE = {"vocab": "one"}


class Paced:
    """The server, as a program that asks it has it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.address = f"http://127.0.0.1:{port}"

    def sent(self) -> list[list[float]]:
        """When each token of each stream since the last call was written, seconds of the monotonic clock."""
        connection = HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", "/sent")
        found: list[list[float]] = json.loads(connection.getresponse().read())
        connection.close()
        return found


@contextmanager
def paced(kind: str) -> Iterator[Paced]:
    """A running server of one kind."""
    words = [sys.executable, "-m", "tests.speed.paced", kind]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        yield Paced(int(process.stdout.readline()))
    finally:
        process.communicate()  # it ends with its input


def body_of(kind: str, num_tokens: int) -> dict[str, Any]:
    """Body of a request for a stream, with ten candidates of each token."""
    if kind == "llama-server":
        return {"prompt": "a", "n_predict": num_tokens, "n_probs": NUM_CANDIDATES, "stream": True}
    return {"prompt": "a", "max_tokens": num_tokens, "logprobs": NUM_CANDIDATES, "stream": True}


def events(kind: str) -> list[bytes]:
    """The events of a stream, each as a chunk of HTTP; words occur as often as in texts, by Zipf's law."""
    random, weights = np.random.default_rng(0), 1 / np.arange(1, NUM_WORDS + 1)
    found = []
    for number in range(NUM_TOKENS):
        ids = random.choice(NUM_WORDS, NUM_CANDIDATES, replace=False, p=weights / weights.sum()).tolist()
        logprobs = np.sort(-random.exponential(3.0, NUM_CANDIDATES))[::-1].tolist()
        found.append(_chunk(_EVENTS[kind](number, [(token, f" w{token}") for token in ids], logprobs)))
    return found


def _native(number: int, words: list[tuple[int, str]], logprobs: list[float]) -> dict[str, Any]:
    entries = _entries(words, logprobs)
    return {
        "index": 0, "content": words[0][1], "tokens": [words[0][0]], "stop": False, "id_slot": -1,
        "tokens_predicted": number + 1, "tokens_evaluated": 1,
        "completion_probabilities": [{**entries[0], "top_logprobs": entries}],
    }  # fmt: skip


def _legacy(_number: int, words: list[tuple[int, str]], logprobs: list[float]) -> dict[str, Any]:
    top = {text: logprob for (_, text), logprob in zip(words, logprobs, strict=True)}
    columns = {
        "text_offset": [0], "token_logprobs": logprobs[:1], "tokens": [words[0][1]], "top_logprobs": [top]
    }  # fmt: skip
    choice = {"index": 0, "text": words[0][1], "logprobs": columns, "finish_reason": None}
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "paced", "choices": [choice]}


def _chat(_number: int, words: list[tuple[int, str]], logprobs: list[float]) -> dict[str, Any]:
    entries = [{name: one[name] for name in ("token", "bytes", "logprob")} for one in _entries(words, logprobs)]
    logged = {"content": [{**entries[0], "top_logprobs": entries}]}
    choice = {"index": 0, "delta": {"content": words[0][1]}, "logprobs": logged, "finish_reason": None}
    return {"id": "cmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "paced", "choices": [choice]}


def _entries(words: list[tuple[int, str]], logprobs: list[float]) -> list[dict[str, Any]]:
    return [
        {"id": token, "token": text, "bytes": list(text.encode()), "logprob": logprob}
        for (token, text), logprob in zip(words, logprobs, strict=True)
    ]


_EVENTS = {"llama-server": _native, "completions": _legacy, "chat": _chat}


def _last(kind: str, num_tokens: int) -> bytes:
    """The end of a stream, which says why it ended and how many tokens it had."""
    if kind == "llama-server":
        ended = {"content": "", "tokens": [], "stop": True, "stop_type": "limit", "tokens_predicted": num_tokens}
        return _chunk({**ended, "tokens_evaluated": 1, "timings": {"cache_n": 0}}) + b"0\r\n\r\n"
    choice = {"index": 0, "text": "", "delta": {}, "logprobs": None, "finish_reason": "length"}
    usage = {"prompt_tokens": 1, "completion_tokens": num_tokens, "total_tokens": 1 + num_tokens}
    return _chunk({"choices": [choice], "usage": usage}) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def _chunk(event: object) -> bytes:
    data = b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection(asyncio.Protocol):
    """One connection to the server."""

    def __init__(self, kind: str, encoded: list[bytes], sent: list[list[float]]) -> None:
        self._kind, self._encoded, self._sent = kind, encoded, sent
        self._loop = asyncio.get_running_loop()
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        """Answer a request once all of it is here."""
        self._received += data
        head, blank, body = self._received.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if blank and len(body) >= (int(lengths[0].partition(b":")[2]) if lengths else 0):
            self._received = b""
            self._answer(head.split(b" ", 2)[1].decode(), body)

    def _answer(self, path: str, body: bytes) -> None:
        if path == KINDS[self._kind]:
            asked = json.loads(body)
            num = min(asked.get("n_predict") or asked.get("max_tokens"), NUM_TOKENS)
            moments: list[float] = []
            self._sent.append(moments)
            self._transport.write(HEAD)
            self._loop.call_later(FIRST_S, self._write, 0, num, self._loop.time() + FIRST_S, moments)
            return
        answers = {"/v1/models": {"data": [{"id": "paced", "owned_by": "paced"}]}, "/sent": self._sent}
        if self._kind == "llama-server":
            answers["/props"] = {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 64}
            answers["/tokenize"] = {"tokens": [{"id": 0, "piece": " w0"}]}
        answer = answers.get(path)
        content = json.dumps(answer).encode()
        status = b"404 Not Found" if answer is None else b"200 OK"
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._transport.write(head % (status, len(content)) + content)
        if path == "/sent":
            self._sent.clear()

    def _write(self, number: int, num: int, due: float, moments: list[float]) -> None:
        if self._transport.is_closing():
            return
        moments.append(time.monotonic())
        self._transport.write(self._encoded[number])
        if number + 1 < num:
            self._loop.call_at(due + GAP_S, self._write, number + 1, num, due + GAP_S, moments)
        else:
            self._transport.write(_last(self._kind, num))


async def main(kind: str) -> None:
    """Serve on a free port, which is written as a line, until input ends."""
    encoded, sent = events(kind), list[list[float]]()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(kind, encoded, sent), "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
