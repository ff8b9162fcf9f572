"""A server of the API on the shipped model, and requests to it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from engine.api.openai.server import server_of
from engine.settings import Settings
from engine.workbench.workbench import Workbench
from tests.waiting import until

KEY = "a key for tests"


@dataclass
class Answer:
    """A response: its status, headers in lower case, and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """Data of a stream, without the mark at its end."""
        lines = [line.removeprefix("data: ") for line in self.body.decode().split("\n\n") if line]
        assert lines.pop() == "[DONE]"
        return [json.loads(line) for line in lines]


@dataclass
class Api:
    """The server: its port, and the workbench behind it."""

    port: int
    bench: Workbench

    def connect(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, path: str, body: object = None, *, method: str = "", key: str = KEY, **headers: str) -> Answer:
        """Send a request; a body that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = self.connect()
        try:
            connection.request(
                method or ("GET" if body is None else "POST"), path, data, {"authorization": f"Bearer {key}", **named}
            )
            response = connection.getresponse()
            given = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, given, response.read())
        finally:
            connection.close()


@contextmanager
def serving(home: Path, model: Path) -> Iterator[Api]:
    """A workbench with its files in `home`, and its server."""
    bench = Workbench(Settings.from_environment({"LOGITBENCH_HOME": str(home)}))
    bench.model_manager.load(model)
    until(lambda: bench.model.engine is not None, "the model was not loaded")
    with served(bench) as made:
        yield made


@contextmanager
def served(bench: Workbench) -> Iterator[Api]:
    """The server of a workbench, which is closed with it."""
    server = server_of(bench)
    server.start(0, KEY)
    assert server.port is not None
    yield Api(server.port, bench)
    server.stop()
    bench.close()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, story_model: Path) -> Iterator[Api]:
    with serving(tmp_path_factory.mktemp("api"), story_model) as made:
        yield made
