"""Finding, filtering and comparing in a long history: what a page waits for."""

import statistics
import time
from collections.abc import Callable
from datetime import date
from typing import Any

import numpy as np

from engine.bench.analysis.comparison import compare_runs
from engine.history import History
from engine.history.downsampling import extremes, ranks
from engine.history.filters import Filter
from engine.runs import RunRecord
from tests.speed.common import Row, at_most
from tests.speed.long_history import long_history

ROUNDS = 9
SHAPE = ""
FILTER_MS, COMPARED_S = 300, 1.0
NUM_COMPARED, NUM_POINTS = 20, 1_000_000

RUN_FILTERS = {
    "text": Filter(text="castle river"),
    "model": Filter(models=("mistral-7b-Q4_K_M", "story-7m-Q8_0")),
    "quantisation": Filter(quantisations=("Q5_K_M",)),
    "machine and question": Filter(machines=(f"{2:016x}",), questions=("users",)),
    "days": Filter(since=date(2026, 3, 1), until=date(2026, 4, 15)),
    "ranges": Filter(ranges={"n_ctx": (1024, 4096), "parallel": (8, None)}),
}
TRIAL_FILTERS = {
    "text of trials": Filter(text="mountain castle"),
    "sampling of trials": Filter(ranges={"temperature": (0.2, 0.8), "top_k": (None, 40)}, models=("story-7m-Q8_0",)),
    "tokens of trials": Filter(ranges={"lowest_p": (None, 1e-12), "slowest_s": (0.02, None)}),
}


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Medians over rounds; there are no shapes here."""
    with History.open(long_history()) as history:
        find = history.find
        pages = {
            "first page of runs": find.runs,
            "first page of configurations": find.cells,
            "first page of trials": find.trials,
        }
        rows = [at_most(name, _ms(call, num_rounds), FILTER_MS, unit="ms") for name, call in pages.items()]
        rows.append(_filters(history, num_rounds))
        others: dict[str, Callable[[], Any]] = {
            "choices among runs": lambda: find.choices("run"),
            "choices among trials": lambda: find.choices("trial"),
            "runs by their best": lambda: find.runs(order="best"),
            "configurations by a metric": lambda: find.cells(order="decode_per_s"),
            "least confident tokens": find.unsure_tokens,
            "trend of a configuration": lambda: find.trend(find.runs(limit=1).rows[0]["id"], 0, "decode_per_s"),
        }
        rows += [Row(name, _ms(call, num_rounds), "ms") for name, call in others.items()]
        seconds = _ms(lambda: compare_runs(_twenty(history)), num_rounds) / 1e3
        rows.append(at_most(f"{NUM_COMPARED} runs read and compared", seconds, COMPARED_S, unit="s"))
    return [*rows, *_thinned(num_rounds)]


def _thinned(num_rounds: int) -> list[Row]:
    """What a chart of very many samples waits for before the browser does."""
    random = np.random.default_rng(0)
    places, values, parts = np.arange(NUM_POINTS), random.normal(size=NUM_POINTS), random.integers(0, 4, NUM_POINTS)
    outline = _ms(lambda: extremes(places, values, parts), num_rounds)
    boxes = _ms(lambda: ranks(values, parts), num_rounds)
    return [
        Row(f"{NUM_POINTS:,} points thinned to their outline", outline, "ms"),
        Row(f"{NUM_POINTS:,} points thinned to their ranks", boxes, "ms"),
    ]


def _filters(history: History, num_rounds: int) -> Row:
    """Each filter as a change: its page and the number of all that it finds."""
    calls = {name: lambda wanted=wanted: history.find.runs(wanted) for name, wanted in RUN_FILTERS.items()}
    calls |= {name: lambda wanted=wanted: history.find.trials(wanted) for name, wanted in TRIAL_FILTERS.items()}
    taken = {name: _ms(call, num_rounds) for name, call in calls.items()}
    slowest = max(taken, key=taken.__getitem__)
    beside = f"worst {taken[slowest]:.0f} ms: {slowest}"
    return at_most(f"filter change, median of {len(taken)}", statistics.median(taken.values()), FILTER_MS, beside, "ms")


def _twenty(history: History) -> list[RunRecord]:
    runs = (history.runs.run(row["id"]) for row in history.find.runs(limit=NUM_COMPARED).rows)
    return [run for run in runs if run is not None]


def _ms(call: Callable[[], object], num_rounds: int) -> float:
    """Milliseconds that a call takes, the median."""
    taken = []
    for _ in range(num_rounds):
        began = time.perf_counter()
        call()
        taken.append(1e3 * (time.perf_counter() - began))
    return statistics.median(taken)
