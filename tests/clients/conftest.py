"""A real server on the shipped model, and the programs of others that use it from an environment of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from engine.settings import PREFIX

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
KEY = "key-of-clients"
ENDS_S, LIMIT_S = 30, 300
TEMPLATE = (
    "{% if tools %}<tool_call> {% for tool in tools %}{{ tool.function.name }} {% endfor %}{% endif %}"
    "{% for m in messages %}{{ m.role }}: {% for call in m.tool_calls %}{{ call.function.name }} {% endfor %}"
    "{{ m.content }}\n{% endfor %}assistant:"
)
"""Of chats, with Hermes' form of calls; the model that ships has none."""
NOWHERE = "http://127.0.0.1:9"
"""Proxy for all but this machine: whatever a client asks the internet for fails at once."""


@dataclass(frozen=True)
class Served:
    """The server, and the folder in which clients write. address: as clients are given it, with /v1."""

    address: str
    folder: Path

    def ask(self, path: str, body: object = None) -> tuple[int, bytes]:
        """Send a request as a program without a library does; gives status and body."""
        connection = HTTPConnection("127.0.0.1", urlsplit(self.address).port or 0, timeout=60)
        try:
            data = None if body is None else json.dumps(body)
            headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
            connection.request("GET" if body is None else "POST", path, data, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@dataclass(frozen=True)
class Clients:
    """Programs of others, in environments of their own, that use the server."""

    served: Served

    def program(self, *words: str, environment: str = "clients", folder: Path = ROOT) -> str:
        """Run the Python of an environment with these words in a folder; gives its standard output."""
        done = subprocess.run(
            [python(environment), *words],
            env=self._variables(),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return done.stdout

    def client(self, name: str, environment: str = "clients") -> Any:
        """Run one of the programs beside the tests; gives the JSON in its last line."""
        output = self.program(str(PROGRAMS / f"{name}.py"), environment=environment)
        return json.loads(output.splitlines()[-1])

    def _variables(self) -> dict[str, str]:
        """The server as OpenAI's, no internet, nothing of the person who runs the tests."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.served.folder),
            "HF_HUB_OFFLINE": "1",
            "HTTP_PROXY": NOWHERE,
            "HTTPS_PROXY": NOWHERE,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "NO_PROXY": "127.0.0.1",
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": self.served.address,
        }


def python(environment: str) -> Path:
    """Interpreter of an environment: `clients`, or `inspect` for what needs OpenAI's client 3."""
    return ROOT / f".venv-{environment}" / "bin" / "python"


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, story_model: Path) -> Iterator[Served]:
    """`python -m engine serve` on a free port with a home folder of its own; the shipped model as a chat model.

    Its context is short, so that requests which ask for as much as there is end soon.
    """
    home = tmp_path_factory.mktemp("serve")
    model = str(home / "story.gguf")
    template = [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", "--chat-template", TEMPLATE]
    context = [sys.executable, "-m", "gguf.scripts.gguf_set_metadata", "--force", model, "llama.context_length", "256"]
    subprocess.run([*template, story_model, model], check=True, capture_output=True)
    subprocess.run(context, check=True, capture_output=True)
    own = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "engine", "serve", "--model", model, "--port", "0", "--api-key", KEY],
            env=own | {PREFIX + "HOME": str(home)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert process.stdout is not None
            variables = dict(word.split("=", 1) for word in process.stdout.readline().split() if "=" in word)
            assert "OPENAI_BASE_URL" in variables, (home / "log").read_text()
            yield Served(variables["OPENAI_BASE_URL"], tmp_path_factory.mktemp("client"))
        finally:
            process.terminate()
            process.wait(ENDS_S)
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture(scope="session")
def clients(served: Served) -> Clients:
    return Clients(served)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs clients where they are not installed; else they take minutes, as `slow` says."""
    missing = [name for name in ("clients", "inspect") if not python(name).is_file()]
    for item in items:
        if "clients" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
            if missing:
                item.add_marker(pytest.mark.skip(reason="clients of others are not installed: `make clients` does it"))
