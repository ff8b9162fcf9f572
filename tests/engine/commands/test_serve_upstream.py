"""`serve --upstream`: our API in front of an external engine, whose calls are answered and stored like any others."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.backends.known import KnownEngine, add_known
from engine.history import History
from tests.engine.commands.test_serve import lines_of, serving
from tests.processes import children_with, free_port
from tests.servers import our_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def upstream(story_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with our_server(story_model, tmp_path_factory.mktemp("upstream"), "--n-ctx", "256") as address:
        yield address


def ask(address: str, path: str, body: dict[str, Any] | None = None) -> Any:
    content = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(address + path, content), timeout=60) as answer:
        return json.load(answer)


def test_calls_are_answered_by_the_engine_elsewhere_and_stored(upstream: str, tmp_path: Path) -> None:
    add_known(tmp_path, KnownEngine(name="other desk", url=upstream))
    port = free_port()
    asked = {"prompt": "Once upon", "max_tokens": 6, "temperature": 0, "logprobs": 3, "echo": True}
    with serving(tmp_path, "--upstream", "other desk", "--port", str(port), "--no-key") as process:
        lines_of(process)
        here = f"http://127.0.0.1:{port}"
        assert ask(here, "/v1/models")["data"][0]["id"] == "other desk"
        own, theirs = (ask(address, "/v1/completions", asked)["choices"][0] for address in (here, upstream))
        assert own["text"] == theirs["text"] and own["finish_reason"] == theirs["finish_reason"]
        assert own["logprobs"]["tokens"] == theirs["logprobs"]["tokens"]
        assert own["logprobs"]["token_logprobs"][1:] == pytest.approx(
            theirs["logprobs"]["token_logprobs"][1:], abs=1e-3
        )
        assert ask(here, "/tokenize", {"prompt": "Once upon"}) == ask(upstream, "/tokenize", {"prompt": "Once upon"})
        process.terminate()
        process.wait(60)
    with History.open(tmp_path / "history.duckdb") as history:
        (summary,) = history.recent(5)
        trial = history.trial(summary.id)
    assert trial is not None and trial.engine is not None
    assert (trial.engine.name, trial.engine.url, trial.label) == ("other desk", upstream, "api")


def test_a_server_is_started_and_ended_with_the_api_in_front_of_it(story_model: Path, tmp_path: Path) -> None:
    port = free_port()
    words = ("--upstream", "llama_cpp.server", "--model", str(story_model), "--n-ctx", "256", "--threads", "1")
    with serving(tmp_path, *words, "--port", str(port), "--no-key") as process:
        lines_of(process)
        here = f"http://127.0.0.1:{port}"
        answer = ask(here, "/v1/completions", {"prompt": "Once upon", "max_tokens": 6, "temperature": 0})
        assert len(answer["choices"][0]["text"]) > 6
        (server,) = children_with("python_server", psutil.Process(process.pid))
        process.terminate()
        process.wait(60)
    assert not server.is_running()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--upstream", "llama_cpp.server", "--parallel", "2"), "one request at a time"),
        (("--upstream", "llama_cpp.server", "--model", "nothing.gguf"), "nothing.gguf"),
        (("--upstream", "down", "--model", "nothing.gguf"), "model: set on the server itself"),
        (("--upstream", "nobody"), "no engine 'nobody'"),
        (("--upstream", "down", "--n-ctx", "256"), "set on the server itself"),
        (("--upstream", "down"), "cannot be reached"),
    ],
)
def test_an_upstream_that_cannot_be_used_is_reported(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    add_known(tmp_path, KnownEngine(name="down", url=f"http://127.0.0.1:{free_port()}"))
    with serving(tmp_path, *words, "--port", str(free_port()), "--no-key") as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert message in errors and "Traceback" not in errors
