"""A server whose answers a test sets, for what real servers do only on bad days."""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer
from typing import Any

from engine.backends.openai_server import ServerEngine
from engine.calls import connect
from tests.http_handler import QuietHandler

COMPLETIONS = "/v1/completions"
MODELS = {"data": [{"id": "m", "object": "model"}]}
Handler = Callable[["Request"], None]


class Request(QuietHandler):
    """One request; `json` answers it."""

    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        server: Any = self.server
        server.connections.append(self.connection)

    def _handle(self) -> None:
        server: Any = self.server
        length = int(self.headers.get("Content-Length", 0))
        self.body = json.loads(self.rfile.read(length) or b"null")
        server.seen.append(self)
        answer = server.answers.get(self.path)
        if callable(answer):
            answer(self)
        elif answer is None:
            self.json({"error": {"message": "not here"}}, 404)
        else:
            self.json(answer)

    do_GET = do_POST = _handle

    def json(self, content: object, status: int = 200, **headers: str) -> None:
        """Answer with JSON."""
        self.text(json.dumps(content), status, kind="application/json", **headers)

    def text(self, content: str, status: int = 200, kind: str = "text/html", **headers: str) -> None:
        """Answer with a text of a kind."""
        raw = content.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(raw)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(raw)

    def events(self, *events: object, cut: bool = False) -> None:
        """Answer with a stream of events; `cut` ends the connection without the last one."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for event in events:
            text = event if isinstance(event, str) else json.dumps(event)
            self.wfile.write(f"data: {text}\n\n".encode())
        if not cut:
            self.wfile.write(b"data: [DONE]\n\n")


def chunk(text: str, *, finish: str | None = None, logprobs: object = None) -> dict[str, Any]:
    """A chunk of /v1/completions."""
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish, "logprobs": logprobs}]}


def columns(text: str, logprob: float, **others: float) -> dict[str, Any]:
    """The legacy columns of one token with its candidates."""
    return {
        "tokens": [text],
        "token_logprobs": [logprob],
        "top_logprobs": [{text: logprob, **others}],
        "text_offset": [0],
    }


@contextmanager
def fake_server(answers: Mapping[str, object], port: int = 0) -> Iterator[tuple[str, list[Request]]]:
    """Serve these answers by path: JSON, or a function of the request; gives the address and the requests seen."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", port), Request)
    server.daemon_threads, server.answers, server.seen = True, {"/v1/models": MODELS, **answers}, []
    server.connections = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        for connection in server.connections:  # else those that are kept are still answered
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def engine_with(
    answering: Handler, *, num_sequences: int | None = None
) -> Iterator[tuple[ServerEngine, list[Request]]]:
    """An engine on a server that is in order while it is probed, and then answers completions like this."""
    is_probed = threading.Event()

    def answered(request: Request) -> None:
        if is_probed.is_set():
            answering(request)
        else:
            request.events(chunk(" a", finish="length", logprobs=columns(" a", -0.5, b=-1.5)))

    with (
        fake_server({COMPLETIONS: answered}) as (address, seen),
        connect(address, num_sequences=num_sequences) as engine,
    ):
        is_probed.set()
        seen.clear()
        yield engine, seen
