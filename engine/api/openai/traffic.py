"""Traffic: the latest calls of the API with their figures, live while they run."""

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import NamedTuple

import numpy as np

from engine.api.openai.errors import ApiError
from engine.workbench.trials import LiveTrial

KEPT_CALLS, KEPT_MINOR = 5_000, 500
"""Latest calls that are kept; fewer of each minor kind, of batches and refused unread, so that others have room."""
LONGEST_BODY = 16_384
LONGEST_CLIENT, LONGEST_ENDPOINT = 60, 100
COUNTED_CLIENTS = 1_000
"""Clients whose totals include calls that are no longer kept; the one that called longest ago is dropped first."""


class Figures(NamedTuple):
    """Figures of a call, of its answers together.

    per_s: generated tokens after the first, per second from the first token to the last. ttft_s: seconds from the
    request to the first token. surprise_bits: mean over its tokens. unsure: its least expected token, with the
    probability of it.
    """

    num_prompt: int = 0
    num_cached: int = 0
    num_generated: int = 0
    per_s: float | None = None
    ttft_s: float | None = None
    surprise_bits: float | None = None
    unsure: str = ""
    unsure_p: float | None = None


class CallRow(NamedTuple):
    """State of a call at one moment. state: waiting, running, done, stopped or failed; error: why it failed.

    elapsed_s: from the request until now, or until its end. trials: ids, one for each answer. raw: of a request of
    `num_bytes`, the first LONGEST_BODY bytes. is_unread: it was refused before its body was read.
    """

    number: int
    at: datetime
    client: str
    endpoint: str
    model: str
    state: str
    figures: Figures
    elapsed_s: float
    trials: tuple[str, ...]
    error: str
    raw: bytes
    num_bytes: int
    is_unread: bool = False

    @property
    def body(self) -> str:
        """The text of the request; bytes that are no UTF-8 are replaced."""
        return self.raw.decode("utf-8", "replace")

    @property
    def is_cut(self) -> bool:
        """Whether the body is only the beginning of the request."""
        return self.num_bytes > LONGEST_BODY


class Totals(NamedTuple):
    """Numbers of calls, of those that failed, and of generated tokens."""

    num_calls: int = 0
    num_failed: int = 0
    num_tokens: int = 0

    def with_call(self, row: CallRow) -> "Totals":
        """Return the totals with one more call."""
        num_failed = self.num_failed + (row.state == "failed")
        return Totals(self.num_calls + 1, num_failed, self.num_tokens + row.figures.num_generated)


class Call:
    """One request and its answers.

    on_over: called when its last trial has ended, on the thread that delivers tokens. Figures take a tenth of a
    millisecond, and are thus left to `settle`, which drops the trials and calls `on_end`.
    """

    def __init__(
        self,
        number: int,
        client: str,
        endpoint: str,
        model: str,
        body: bytes,
        on_over: Callable[["Call"], object],
        on_end: Callable[[Figures], object],
    ) -> None:
        self.number, self.endpoint, self.model = number, endpoint, model
        self.client = printable(client)[:LONGEST_CLIENT] or "unknown"
        self._at, self._began = datetime.now(UTC), time.monotonic()
        self._body, self._num_bytes = body[:LONGEST_BODY], len(body)
        self._lock = threading.Lock()
        self._live: tuple[LiveTrial, ...] = ()
        self._ids: tuple[str, ...] = ()
        self._num_open = 0
        self._figures = Figures()
        self._state, self._error, self._is_unread = "waiting", "", False
        self._ended: float | None = None
        self._on_over, self._on_end = on_over, on_end

    @property
    def is_open(self) -> bool:
        """False once it has ended."""
        return self._ended is None

    def begin(self, trials: Sequence[LiveTrial]) -> None:
        """Follow these trials until all have ended."""
        with self._lock:
            self._live, self._ids = tuple(trials), tuple(trial.id for trial in trials)
            self._num_open = len(trials)
        for trial in trials:
            trial.job.add_done_callback(lambda _: self._one_ended())

    def run(self, model: str) -> None:
        """Mark a call without trials as running, by this model."""
        with self._lock:
            self._state, self.model = "running", model

    def end(self, figures: Figures) -> None:
        """Record the end of a call without trials."""
        with self._lock:
            self._figures, self._state, self._ended = figures, "done", time.monotonic()
        self._on_end(figures)

    def leave(self) -> None:
        """Record that the client has left; trials that run end the call themselves."""
        with self._lock:
            if self._ended is None and not self._live:
                self._state, self._ended = "stopped", time.monotonic()

    def fail(self, error: ApiError, *, is_unread: bool = False) -> None:
        """Record that the request was refused or failed; is_unread: before its body was read."""
        with self._lock:
            self._is_unread = is_unread
            self._state, self._error = "failed", str(error)
            self._ended = self._ended or time.monotonic()

    def settle(self) -> None:
        """Compute the figures of a call whose trials have all ended, once. Any thread may call it."""
        with self._lock:
            if self._num_open or not self._live:
                return
            live, self._live = self._live, ()
            self._figures = figures_of(live, self._began)
            if self._state != "failed":
                self._state, self._error = _ending(live)
        self._on_end(self._figures)

    def stop(self) -> None:
        """Stop its trials at their next decode step."""
        for trial in self._live:
            trial.job.cancel()

    def row(self) -> CallRow:
        """Return the current state."""
        self.settle()
        with self._lock:
            live, state, figures = self._live, self._state, self._figures
            if live and state == "waiting":
                figures = figures_of(live, self._began)
                state = "running" if any(trial.job.is_started for trial in live) else "waiting"
            until = self._ended or time.monotonic()
            return CallRow(
                self.number, self._at, self.client, self.endpoint, self.model, state, figures,
                until - self._began, self._ids, self._error, self._body, self._num_bytes, self._is_unread,
            )  # fmt: skip

    def _one_ended(self) -> None:
        with self._lock:
            self._num_open -= 1
            if self._num_open:
                return
            self._ended = time.monotonic()
        self._on_over(self)


class Traffic:
    """The latest 5,000 calls, at most 500 of them of batches and 500 refused unread. Any thread may call it.

    on_end: called with the figures of each call that has ended, when these are read or `settle` is called.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: OrderedDict[int, Call] = OrderedDict()
        self._of_batches: OrderedDict[int, Call] = OrderedDict()
        self._refused: OrderedDict[int, Call] = OrderedDict()
        self._over: deque[Call] = deque()
        self._forgotten: OrderedDict[str, Totals] = OrderedDict()
        self._num = 0
        self.on_end: Callable[[Figures], object] = lambda _: None

    def add(self, client: str, endpoint: str, model: str, body: bytes, *, is_batch: bool = False) -> Call:
        """Record a new request; is_batch: a batch makes it, and thus no response by whose end `settle` is called."""
        if is_batch:
            self.settle()
        return self._added(client, endpoint, model, body, self._of_batches if is_batch else None)

    def refuse(self, client: str, endpoint: str, error: ApiError) -> None:
        """Record a request that was refused before its body was read."""
        self._added(client, printable(endpoint)[:LONGEST_ENDPOINT], "", b"", self._refused).fail(error, is_unread=True)

    def _added(
        self, client: str, endpoint: str, model: str, body: bytes, minor: "OrderedDict[int, Call] | None"
    ) -> Call:
        """Record a request, in the table of its kind too where it is a minor one."""
        with self._lock:
            self._num += 1
            call = Call(
                self._num, client, endpoint, model, body, self._over.append, lambda figures: self.on_end(figures)
            )
            self._calls[call.number] = call
            if minor is not None:
                minor[call.number] = call
            self._make_room()
        return call

    def settle(self) -> None:
        """Compute the figures of the calls that have ended."""
        with suppress(IndexError):  # none is left
            while True:
                self._over.popleft().settle()

    def _make_room(self) -> None:
        """Forget the oldest calls beyond what is kept; of minor ones, those that have ended. The lock is held."""
        for minor in (self._of_batches, self._refused):
            if len(minor) > KEPT_MINOR:
                ended = next((number for number, call in minor.items() if not call.is_open), None)
                if ended is not None:
                    self._forget(ended)
        if len(self._calls) > KEPT_CALLS:
            self._forget(next(iter(self._calls)))

    def _forget(self, number: int) -> None:
        """Forget a call and add it to the totals of its client. The lock is held."""
        row = self._calls.pop(number).row()
        for minor in (self._of_batches, self._refused):
            minor.pop(number, None)
        self._forgotten[row.client] = self._forgotten.pop(row.client, Totals()).with_call(row)
        if len(self._forgotten) > COUNTED_CLIENTS:
            self._forgotten.popitem(last=False)

    @property
    def num_calls(self) -> int:
        """Number of calls since the start."""
        return self._num

    @property
    def num_kept(self) -> int:
        """Number of the latest calls that are kept."""
        return len(self._calls)

    def tokens_per_s(self) -> float:
        """Return the decode rate of the running calls together (tok/s)."""
        with self._lock:
            calls = [call for call in self._calls.values() if call.is_open]
        return sum(call.row().figures.per_s or 0.0 for call in calls)

    def stop_running(self) -> None:
        """Stop the calls in progress."""
        with self._lock:
            calls = list(self._calls.values())
        for call in calls:
            call.stop()

    def rows(self, limit: int = KEPT_CALLS) -> list[CallRow]:
        """Return the latest calls, newest first."""
        with self._lock:
            latest = list(islice(reversed(self._calls.values()), limit))
        return [call.row() for call in latest]

    def kept_and_forgotten(self) -> tuple[list[CallRow], dict[str, Totals]]:
        """Return the calls that are kept, newest first, and the totals of all others by client."""
        with self._lock:
            kept, forgotten = list(reversed(self._calls.values())), dict(self._forgotten)
        return [call.row() for call in kept], forgotten

    def row(self, number: int) -> CallRow | None:
        """Return one call, None where it is not among the latest."""
        with self._lock:
            found = self._calls.get(number)
        return found.row() if found is not None else None

    def changed(self, after: int, open_calls: Set[int]) -> list[CallRow]:
        """Return the calls after the number `after`, newest first, and those of these numbers."""
        with self._lock:
            new = takewhile(lambda number: number > after, reversed(self._calls))
            numbers = sorted({*new, *open_calls}, reverse=True)
            found = [self._calls[number] for number in numbers if number in self._calls]
        return [call.row() for call in found]


def figures_of(trials: Sequence[LiveTrial], began: float) -> Figures:
    """Return the figures of running or ended trials; began: when the request came, by time.monotonic()."""
    jobs = [trial.job for trial in trials]
    timings = [job.timings for job in jobs]
    started = [(job.submitted + one.ttft_s, one) for job, one in zip(jobs, timings, strict=True) if one.num_generated]
    first = min((at for at, _ in started), default=math.nan)
    last = max((at + one.decode_s for at, one in started), default=math.nan)
    num_generated = sum(one.num_generated for one in timings)
    has_rate = last > first and any(one.num_generated > 1 for one in timings)
    least, surprise = _surprise(trials)
    return Figures(
        num_prompt=sum(one.num_prompt for one in timings),
        num_cached=sum(one.num_cached for one in timings),
        num_generated=num_generated,
        per_s=(num_generated - 1) / (last - first) if has_rate else None,
        ttft_s=max(first - began, 0.0) if started else None,
        surprise_bits=surprise,
        unsure=least[1],
        unsure_p=least[0],
    )


def printable(text: str) -> str:
    """Return the printable characters of a text that a client has sent."""
    return text if text.isprintable() else "".join(filter(str.isprintable, text))


def _surprise(trials: Sequence[LiveTrial]) -> tuple[tuple[float | None, str], float | None]:
    """Return probability and text of the least expected token, and the mean surprise in bits."""
    least: tuple[float | None, str] = None, ""
    total, num, lowest = 0.0, 0, 0.0
    for trial in trials:
        steps = trial.job.steps
        logprobs = np.array(steps.records["logprob"][: len(steps)], np.float64)
        is_known = ~np.isnan(logprobs)  # a server gives none for the token that ends an answer
        if not is_known.any() or not steps.k:
            continue
        total, num = total - float(np.maximum(logprobs[is_known], -1e4).sum()), num + int(is_known.sum())
        at = int(np.nanargmin(logprobs))
        if logprobs[at] < lowest:
            lowest = float(logprobs[at])
            least = math.exp(lowest), steps[at].text or steps.vocabulary.text(steps[at].id)
    return least, total / num / math.log(2) if num else None


def _ending(trials: Sequence[LiveTrial]) -> tuple[str, str]:
    """Return the state of ended trials together, and the error of the first that failed."""
    errors = [error for trial in trials if (error := trial.job.exception(0)) is not None]
    if errors:
        return "failed", str(errors[0])
    is_stopped = any(trial.job.result(0).finish_reason == "cancelled" for trial in trials)
    return ("stopped" if is_stopped else "done"), ""
