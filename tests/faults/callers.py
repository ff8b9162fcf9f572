"""python -m tests.faults.callers: requests from connections that come, go and break off, beside trials of a browser.

A real server on the model that ships. Each request biases a token of its own, so that an answer meant for another one
is seen. Counted are answers that were lost, hung or crossed, and the workers' memory after a fifth and at the end.
"""

import argparse
import itertools
import json
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from engine.api.openai.logprobs import TokenTexts
from engine.api.openai.server import server_of
from engine.models.library import embedded_model
from engine.settings import Settings
from engine.specs import Request, Sampling
from engine.workbench.trials import Draft
from engine.workbench.workbench import Workbench

KEY = "a key for tests"
NUM_CONNECTIONS, NUM_TRIALS, NUM_TOKENS = 64, 4, 12
HANGS_S = 120.0
KINDS = {"whole": 5, "stream": 3, "slow": 1, "leaves in its head": 1, "leaves at once": 2, "leaves its stream": 2}
"""Kinds of requests with their weights."""


class Outcome(NamedTuple):
    """Requests by outcome, trials beside them, and the workers' private bytes after a fifth and at the end."""

    counts: Counter[str]
    num_trials: int
    bytes_early: float
    bytes_late: float

    @property
    def is_sound(self) -> bool:
        """Whether nothing was lost, hung or crossed."""
        return not any(self.counts[name] for name in ("lost", "hung", "crossed"))


class Callers:
    """64 connections that send requests to a server until `num` were sent."""

    def __init__(self, bench: Workbench, port: int, num: int) -> None:
        self._bench, self._port, self._num = bench, port, num
        self._engine = bench.model.loaded()[0]
        self._texts = TokenTexts(self._engine.vocabulary)
        self._numbers, self._lock = itertools.count(), threading.Lock()
        self.counts: Counter[str] = Counter()
        self.num_sent = 0

    def run(self) -> None:
        """Send requests, one after another."""
        while (number := next(self._numbers)) < self._num:
            try:
                outcome = self._send(number, random.Random(number))
            except TimeoutError:
                outcome = "hung"
            except OSError:
                outcome = "lost"
            with self._lock:
                self.counts[outcome] += 1
                self.num_sent += 1

    def _send(self, number: int, draw: random.Random) -> str:
        (kind,) = draw.choices(list(KINDS), list(KINDS.values()))
        token = token_of(number)
        body = json.dumps(
            {"prompt": f"Number {number}:", "max_tokens": NUM_TOKENS, "logprobs": 1, "logit_bias": {str(token): 100},
             "stream": kind in ("stream", "slow", "leaves its stream") or draw.random() < 0.3}
        ).encode()  # fmt: skip
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        with socket.create_connection(("127.0.0.1", self._port), timeout=HANGS_S) as client:
            if kind == "leaves in its head":
                client.sendall(head[: draw.randrange(len(head))])
                return kind
            client.sendall(head + body)
            if kind == "leaves at once":
                time.sleep(draw.choice((0, 0.01, 0.1)))
                return kind
            got = b""
            while some := client.recv(200 if kind == "slow" else 65_536):
                got += some
                if kind == "leaves its stream" and b"data: " in got:
                    return kind
                if kind == "slow":
                    time.sleep(0.005)
        return self._judged(got, token)

    def _judged(self, got: bytes, token: int) -> str:
        """Return "answered", or what is wrong with an answer."""
        if not got.startswith(b"HTTP/1.1 200"):
            return "refused" if got.startswith((b"HTTP/1.1 429", b"HTTP/1.1 503")) else "lost"
        texts = got.partition(b"\r\n\r\n")[2].decode()
        parts = [
            json.loads(text[text.index("{") :]) for text in texts.splitlines() if text.startswith(("{", "data: {"))
        ]
        given = [one for part in parts for one in (part["choices"][0]["logprobs"] or {"tokens": []})["tokens"]]
        if set(given) - {self._texts[token]}:
            return "crossed"
        return "answered" if len(given) == NUM_TOKENS else "lost"


class Pages:
    """A trial after another, as a person at a page runs them, until `ends` is set."""

    def __init__(self, bench: Workbench, counts: Counter[str], ends: threading.Event) -> None:
        self._bench, self._counts, self._ends = bench, counts, ends
        self.num = 0

    def run(self, place: int) -> None:
        """Run trials and check their tokens."""
        token = token_of(-place - 1)
        draft = Draft("Once", sampling=Sampling(logit_bias=((token, 100.0),)), request=Request(max_tokens=60))
        while not self._ends.is_set():
            done = self._bench.trials.submit(draft).job.result(HANGS_S)
            self._counts["crossed"] += set(done.ids) != {token}
            self._counts["lost"] += len(done.ids) != 60
            self.num += 1


def token_of(number: int) -> int:
    """Return the token that a request biases: one of 3,000 with text."""
    return 500 + number % 3000


def campaign(num: int, home: Path) -> Outcome:
    """Send `num` requests to a server of its own, and wait until nothing runs."""
    bench = Workbench(Settings.from_environment({"LOGITBENCH_HOME": str(home)}))
    server = server_of(bench)
    try:
        bench.model_manager.load(embedded_model())
        wait_for(lambda: bench.model.engine is not None)
        engine = bench.model.loaded()[0]
        server.start(0, KEY)
        assert server.port is not None
        callers, ends = Callers(bench, server.port, num), threading.Event()
        pages = Pages(bench, callers.counts, ends)
        threads = [threading.Thread(target=callers.run, daemon=True) for _ in range(NUM_CONNECTIONS)]
        beside = [threading.Thread(target=pages.run, args=(place,), daemon=True) for place in range(NUM_TRIALS)]
        for thread in (*threads, *beside):
            thread.start()
        wait_for(lambda: callers.num_sent >= num // 5)
        early = sum(one["private_bytes"] for one in engine.measure(HANGS_S))
        for thread in threads:
            thread.join()
        ends.set()
        for thread in beside:
            thread.join(HANGS_S)
        callers.counts["hung"] += sum(thread.is_alive() for thread in beside)
        wait_for(lambda: engine.num_open == 0 and not bench.machine.busy_with)
        rows = server.traffic.rows()
        callers.counts["hung"] += sum(row.state in ("waiting", "running") for row in rows)
        late = sum(one["private_bytes"] for one in engine.measure(HANGS_S))
        return Outcome(callers.counts, pages.num, early, late)
    finally:
        server.stop()
        bench.close()


def wait_for(is_so: Callable[[], bool]) -> None:
    """Wait until it is so. Raises TimeoutError after ten minutes."""

    end = time.monotonic() + 600
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError("it does not come to an end")
        time.sleep(0.02)


def main() -> int:
    """Run the campaign and print its counts; 1 where anything was lost, hung or crossed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.callers", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=5000, help="how many requests (default: 5000)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="logitbench-callers-") as home:
        outcome = campaign(asked.count, Path(home))
    for name in ("lost", "hung", "crossed", *sorted({*outcome.counts} - {"lost", "hung", "crossed"})):
        print(f"{name:22}{outcome.counts[name]:>8,}")
    print(f"{'trials beside them':22}{outcome.num_trials:>8,}")
    print(
        f"workers' memory: {outcome.bytes_early / 1e6:.1f} MB after a fifth, {outcome.bytes_late / 1e6:.1f} at the end"
    )
    return int(not outcome.is_sound)


if __name__ == "__main__":
    sys.exit(main())
