"""Totals of the API's traffic by client."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engine.api.openai.traffic import CallRow, Totals, Traffic


class ClientSummary(NamedTuple):
    """Totals of one client since the start, and percentiles over its calls that are kept.

    p50_s, p95_s: of the seconds from request to end, of calls that succeeded; ttft_p50_s, ttft_p95_s: of those to the
    first token, of calls that have one.
    """

    client: str
    num_calls: int
    num_failed: int
    num_tokens: int
    p50_s: float | None
    p95_s: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None


def by_client(traffic: Traffic) -> list[ClientSummary]:
    """Return totals by client, the busiest first."""
    kept, forgotten = traffic.kept_and_forgotten()
    found: dict[str, list[CallRow]] = {client: [] for client in forgotten}
    for row in kept:
        found.setdefault(row.client, []).append(row)
    summaries = [_summary(client, calls, forgotten.get(client, Totals())) for client, calls in found.items()]
    return sorted(summaries, key=lambda one: -one.num_calls)


def _summary(client: str, kept: Sequence[CallRow], forgotten: Totals) -> ClientSummary:
    totals = forgotten
    for row in kept:
        totals = totals.with_call(row)
    times = [call.elapsed_s for call in kept if call.state == "done"]
    firsts = [call.figures.ttft_s for call in kept if call.figures.ttft_s is not None]
    return ClientSummary(client, *totals, *_percentiles(times), *_percentiles(firsts))


def _percentiles(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return median and 95th percentile; None where there are no values."""
    if not values:
        return None, None
    p50, p95 = np.percentile(values, (50, 95)).tolist()
    return p50, p95
