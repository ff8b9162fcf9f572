"""Metrics of one sample, computed from the timestamps of its requests; pure: no clock, no pool."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.bench.planning.plan import Objective

Moments = npt.NDArray[np.float64]

FEWEST_FOR_P95 = 20
FEWEST_FOR_P99 = 1_000
LEAST_KNOWN_GAPS = 0.99
"""Share of the gaps between tokens that must be known for their percentiles."""
_NAN = float("nan")


class RequestTimes(NamedTuple):
    """Timestamps of one answered request, in seconds of the monotonic clock.

    asked: intended submission; started: when it left the queue; first: when its first token was decoded, or could have
    been where none was requested; tokens: when each token was decoded, shape (n,); num_computed: prompt tokens that
    were computed, not found in the cache. gaps: seconds from each token to the next, NaN where one of them shares its
    moment with another token; None: those of `tokens`.
    """

    asked: float
    started: float
    first: float
    tokens: Moments
    num_computed: int
    gaps: Moments | None = None

    @property
    def ttft_s(self) -> float:
        """Time to first token: first token decoded − `asked`."""
        return self.first - self.asked

    @property
    def tpot_s(self) -> float:
        """Time per output token: (last token − first token) / (n − 1); NaN for fewer than two tokens."""
        num = len(self.tokens)
        return float(self.tokens[-1] - self.tokens[0]) / (num - 1) if num > 1 else _NAN

    @property
    def e2e_s(self) -> float:
        """End-to-end time: TTFT + TPOT × (n − 1), which is the last token − `asked`."""
        num_after = max(len(self.tokens) - 1, 0)
        return self.ttft_s + (self.tpot_s * num_after if num_after else 0.0)

    @property
    def end(self) -> float:
        """Timestamp of the last decoded token; `first` where there is none."""
        return float(self.tokens[-1]) if len(self.tokens) else self.first

    def meets(self, objective: Objective) -> bool:
        """Return True where TTFT and decode speed meet the objective; a single token has no speed to miss."""
        is_fast = len(self.tokens) < 2 or self.tpot_s * objective.per_s <= 1
        return self.ttft_s <= objective.ttft_s and is_fast


Stream = list[RequestTimes]
"""Requests submitted sequentially, each once the previous one was answered."""

Repetition = list[Stream]
"""Streams that were released together."""


def metrics_of(repetitions: Sequence[Repetition], objective: Objective) -> dict[str, float]:
    """Return those of METRICS that follow from the requests' timestamps; NaN where there are too few values.

    For a single stream, decode_per_s is llama-bench's tg (one token per decode, seconds per token averaged) and
    prefill_per_s its pp (prompt tokens over the seconds of computing them), at the same depth.
    """
    requests = [request for repetition in repetitions for stream in repetition for request in stream]
    seconds = sum(seconds_of(repetition) for repetition in repetitions)
    gaps = _known(
        np.concatenate([np.diff(request.tokens) if request.gaps is None else request.gaps for request in requests])
    )
    ttft = np.array([request.ttft_s for request in requests])
    tpot = np.array([request.tpot_s for request in requests if len(request.tokens) > 1])
    tpot_s = _median(tpot)
    return {
        "tokens_per_s": _busy_rate(repetitions),
        "end_to_end_per_s": _rate(sum(len(request.tokens) for request in requests), seconds),
        "prefill_per_s": _prefill_rate(requests),
        "decode_per_s": 1 / tpot_s if tpot_s > 0 else _NAN,
        "ttft_s": _median(ttft),
        "ttft_p95_s": _percentile(ttft, 95, FEWEST_FOR_P95),
        "tpot_s": tpot_s,
        "tpot_p95_s": _percentile(tpot, 95, FEWEST_FOR_P95),
        "gap_p50_s": _median(gaps),
        "gap_p95_s": _percentile(gaps, 95, FEWEST_FOR_P95),
        "gap_p99_s": _percentile(gaps, 99, FEWEST_FOR_P99),
        "e2e_s": _median(np.array([request.e2e_s for request in requests])),
        "requests_per_s": _rate(len(requests), seconds),
        "goodput_per_s": sum(request.meets(objective) for request in requests) / seconds,
    }


def _known(gaps: Moments) -> Moments:
    """Return the gaps that are known; none of them where more are missing than the last percentile may lack."""
    known = gaps[np.isfinite(gaps)]
    return known if len(known) >= LEAST_KNOWN_GAPS * len(gaps) else known[:0]


def busy_window(repetition: Repetition) -> tuple[float, float]:
    """Return start and end of the window in which all streams decode; may be empty.

    It lasts from the moment when the last stream has its first token to the first end of a stream. Streams of requests
    without tokens have no such window: (inf, -inf).
    """
    if any(not len(request.tokens) for stream in repetition for request in (stream[0], stream[-1])):
        return math.inf, -math.inf
    start = max(float(stream[0].tokens[0]) for stream in repetition)
    end = min(float(stream[-1].tokens[-1]) for stream in repetition)
    return start, end


def _busy_rate(repetitions: Iterable[Repetition]) -> float:
    """Return tokens per second while every stream was busy."""
    num_tokens, seconds = 0, 0.0
    for repetition in repetitions:
        start, end = busy_window(repetition)
        if end > start:
            seconds += end - start
            moments = np.concatenate([request.tokens for stream in repetition for request in stream])
            num_tokens += int(np.count_nonzero((moments > start) & (moments <= end)))
    return _rate(num_tokens, seconds)


def seconds_of(repetition: Repetition) -> float:
    """Return the seconds from the first request's submission to the last token."""
    requests = [request for stream in repetition for request in stream]
    return max(request.end for request in requests) - min(request.asked for request in requests)


def _prefill_rate(requests: Iterable[RequestTimes]) -> float:
    """Return prompt tokens computed per second of the time in which any request was between queue and first token."""
    num_tokens, seconds, covered = 0, 0.0, -math.inf
    for request in sorted((request for request in requests if request.num_computed), key=lambda one: one.started):
        num_tokens += request.num_computed
        seconds += max(0.0, request.first - max(request.started, covered))
        covered = max(covered, request.first)
    return _rate(num_tokens, seconds)


def _rate(num: float, seconds: float) -> float:
    return num / seconds if num and seconds > 0 else _NAN


def _median(values: Moments) -> float:
    return _percentile(values, 50, 1)


def _percentile(values: Moments, percent: float, fewest: int) -> float:
    return float(np.percentile(values, percent)) if len(values) >= fewest else _NAN
