"""Metrics of one API server in Prometheus' text form, in a registry of its own. Only this module imports the library.

The names follow those of vLLM and llama-server. Labels are paths of routes and statuses, never what a client sent.
"""

import asyncio
import time
from collections.abc import Iterable, MutableMapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.routing import Route

from engine.api.openai.guard import Application, Message, Receive, Send
from engine.api.openai.traffic import Figures, Traffic
from engine.workbench.workbench import Workbench

CONTENT_TYPE = CONTENT_TYPE_LATEST
CLIENT_LEFT = 499
"""nginx's status for a client that disconnected; nobody reads it."""
DEFECT = 500
SETTLES_S = 0.1

PREFIX, OTHER = "logitbench", "other"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the histograms' buckets."""


class Metrics:
    """Counters, histograms and gauges. Any thread may call it.

    Tokens and times to the first token are those of `traffic`'s calls that have ended. Running and waiting
    requests are all of the loaded model, including those of the pages.
    """

    def __init__(self, bench: Workbench, traffic: Traffic) -> None:
        self._bench, self._traffic = bench, traffic
        self._registry = CollectorRegistry()
        ours: dict[str, Any] = {"namespace": PREFIX, "registry": self._registry}
        self._requests = Counter("requests", "HTTP requests answered.", ("endpoint", "status"), **ours)
        self._prompt = Counter("prompt_tokens", "Prompt tokens, those from the cache included.", **ours)
        self._cached = Counter("prompt_tokens_cached", "Prompt tokens taken from the cache.", **ours)
        self._generated = Counter("generation_tokens", "Generated tokens.", **ours)
        self._first = Histogram(
            "time_to_first_token_seconds", "Seconds from request to first token.", buckets=SECONDS, **ours
        )
        self._duration = Histogram(
            "request_duration_seconds", "Seconds from request to the end of its answer.", ("endpoint",),
            buckets=SECONDS, **ours,
        )  # fmt: skip
        for name, about, value in (
            ("num_requests_running", "Requests in the model's batch.", lambda: self._jobs()[0]),
            ("num_requests_waiting", "Requests in the model's queue.", lambda: self._jobs()[1]),
            ("generation_tokens_per_second", "Decode rate of the running calls together.", traffic.tokens_per_s),
        ):
            Gauge(name, about, **ours).set_function(value)

    def settle(self) -> None:
        """Count the tokens of the calls that have ended."""
        self._traffic.settle()

    def text(self) -> bytes:
        """Return all metrics in the text form."""
        self.settle()
        return generate_latest(self._registry)

    def count(self, endpoint: str, status: int, elapsed_s: float) -> None:
        """Count an answered request."""
        self._requests.labels(endpoint, str(status)).inc()
        self._duration.labels(endpoint).observe(elapsed_s)

    def add(self, figures: Figures) -> None:
        """Count the tokens of a call that has ended."""
        self._prompt.inc(figures.num_prompt)
        self._cached.inc(figures.num_cached)
        self._generated.inc(figures.num_generated)
        if figures.ttft_s is not None:
            self._first.observe(figures.ttft_s)

    def _jobs(self) -> tuple[int, int]:
        """Return how many requests run and wait."""
        engine = self._bench.model.engine
        if engine is None:
            return 0, 0
        num_running = sum(worker.num_running for worker in engine.workers())
        return num_running, max(engine.num_open - num_running, 0)


class Measured:
    """ASGI middleware that counts every request, refused ones included, under the path of its route.

    The figures of calls that have ended are computed SETTLES_S after a response, so that its client does not wait for
    them.
    """

    def __init__(self, app: Application, *, metrics: Metrics, routes: Iterable[Route]) -> None:
        self._app, self._metrics = app, metrics
        self._settling: asyncio.TimerHandle | None = None
        self._paths = frozenset(route.path_format for route in routes)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one ASGI scope."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began = CLIENT_LEFT, time.monotonic()

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note)
        except Exception:
            status = DEFECT
            raise
        finally:
            self._metrics.count(self._endpoint(scope), status, time.monotonic() - began)
            if self._settling is None:
                self._settling = asyncio.get_running_loop().call_later(SETTLES_S, self._settle)

    def _settle(self) -> None:
        self._settling = None
        self._metrics.settle()

    def _endpoint(self, scope: MutableMapping[str, Any]) -> str:
        """Return the path of the request's route; a refused request has none, only a path that may be one."""
        path = scope["route"].path_format if "route" in scope else scope["path"]
        return path if path in self._paths else OTHER
