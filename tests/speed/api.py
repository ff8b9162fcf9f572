"""The API's server in a process of its own, whose engine can be asked without HTTP too; what speed programs share."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, cast

import psutil

from engine import Pool, PoolSpec
from engine.api.openai.requests import RECORDED_TOP_K
from engine.api.openai.server import server_of
from engine.models.library import embedded_model
from engine.settings import Settings
from engine.specs import Sampling
from engine.workbench.workbench import Workbench
from tests.speed.common import MODELS, output_of, run
from tests.speed.peers import ROOT

KEY = "key-of-speed"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
LIKE_API = Sampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=1)
"""What a request is sampled with that names nothing but its seed."""


class Api:
    """A running server. Requests over HTTP come from this process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.port: int = self._answer()

    def inside(self, do: str, **given: Any) -> Any:
        """Have the server's own process do something, as `_answers` has it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **given}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    @property
    def cpu_s(self) -> float:
        """Processor seconds of the server's process, its workers left out."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def connect(self) -> HTTPConnection:
        """A connection that stays open."""
        return HTTPConnection("127.0.0.1", self.port, timeout=600)

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("The API's server ended; its last words are above.")
        return json.loads(line)


@contextmanager
def serving(path: str, spec: PoolSpec | None = None) -> Iterator[Api]:
    """A server on this model, with a home folder of its own; spec None: as `serve` opens it."""
    with tempfile.TemporaryDirectory() as home:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.speed.api", path, json.dumps(spec and spec.to_dict())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"LOGITBENCH_HOME": home},
        )
        try:
            yield Api(process)
        finally:
            process.communicate()  # it ends with its input


def chat_model() -> str:
    """Path of the shipped model with a chat template, written on the first use."""
    path = MODELS / "story.gguf"
    if not path.is_file():
        MODELS.mkdir(parents=True, exist_ok=True)
        words = ["-m", "gguf.scripts.gguf_new_metadata", "--chat-template", TEMPLATE, str(embedded_model()), str(path)]
        output_of([sys.executable, *words])
    return str(path)


def post(connection: HTTPConnection, path: str, body: dict[str, Any]) -> bytes:
    """Body of the answer to a request; exits where it is no success."""
    connection.request("POST", path, json.dumps(body), {"Authorization": f"Bearer {KEY}"})
    response: HTTPResponse = connection.getresponse()
    found = response.read()
    if response.status != 200:
        sys.exit(f"POST {path} was answered with {response.status}: {found[:500]!r}")
    return found


def streamed(num_tokens: int, **given: Any) -> dict[str, Any]:
    """Body of a streamed completion of so many tokens with ten candidates each, nothing of the prompt reused."""
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    return {"max_tokens": num_tokens, "logprobs": 10, "ignore_eos": True, "cache_prompt": False, **usage, **given}


def num_streamed(body: bytes) -> int:
    """Tokens of a stream, which it counts at its end; exits where tokens came without ten candidates.

    Candidates are looked for in OpenAI's form of completions, and in that of chats, which llama-server sends.
    """
    events = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event.startswith(b"data: {")]
    chunks = [json.loads(event) for event in events]
    num: int = chunks[-1]["usage"]["completion_tokens"]
    for chunk in chunks:
        for given in (choice.get("logprobs") or {} for choice in chunk["choices"]):
            tops = given.get("top_logprobs") or [entry["top_logprobs"] for entry in given.get("content") or ()]
            if any(len(top) < 9 for top in tops):  # two tokens of one text are one candidate in the form of completions
                sys.exit("A token came without its ten candidates.")
    return num


def main(path: str, spec: dict[str, Any] | None) -> None:
    """Serve on a free port, which is the first line written; then answer commands, one a line, until input ends."""
    bench = Workbench(Settings.from_environment())
    server = server_of(bench)
    try:
        bench.model_manager.load(Path(path), PoolSpec(**spec) if spec else None)
        while bench.model.is_loading:
            time.sleep(0.05)
        engine = cast(Pool, bench.model.loaded()[0])
        server.start(0, KEY)
        print(server.port, flush=True)
        for line in sys.stdin:
            print(json.dumps(_answer(bench, engine, json.loads(line))), flush=True)
    finally:
        server.stop()
        bench.close()


def _answer(bench: Workbench, engine: Pool, asked: dict[str, Any]) -> Any:
    """Seconds of one request; tokens a second of many; figures of the latest calls, which HTTP made."""
    began = time.perf_counter()
    match asked["do"]:
        case "completion":
            engine.submit(asked["prompt"], LIKE_API, max_tokens=1, top_k=RECORDED_TOP_K).result()
            return time.perf_counter() - began
        case "chat":
            engine.chat(asked["messages"], LIKE_API, max_tokens=1, top_k=RECORDED_TOP_K).result()
            return time.perf_counter() - began
        case "streams":
            return run(engine, asked["prompts"], top_k=10, max_tokens=asked["num_tokens"]).per_s
        case "calls":
            rows = server_of(bench).traffic.rows(asked["num"])
            return [(row.figures.ttft_s, row.elapsed_s, row.figures.num_generated) for row in rows]
        case other:
            raise ValueError(other)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
