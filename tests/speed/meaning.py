"""Searching by meaning in 100,000 vectors: what a page waits for, and what keeping them takes."""

import statistics
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from engine.history import History
from engine.history.database_writer import insert_rows
from engine.history.filters import Filter
from engine.history.vectors import DIM, Model
from engine.step_parts import Floats
from tests.speed.common import MODELS, Row, at_most
from tests.speed.long_history import FIRST_DAY, id_at, trial_row, write_once

ROUNDS = 20
SHAPE = ""
SEARCH_MS = 200
NUM_TRIALS, CHUNK = 50_000, 5_000
"""Each has a prompt and an output, so 100,000 vectors."""

PATH = MODELS / "vectors-1.duckdb"
MODEL = Model("0" * 64, "random numbers")


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Medians over rounds, each with a vector of its own; there are no shapes here."""
    kept_per_s = write_once(PATH, _fill)
    random = np.random.default_rng(1)
    with History.open(PATH) as history:
        near = history.vectors.nearest
        began = time.perf_counter()
        total = near(_unit(random, 1)[0]).total
        first_ms = 1e3 * (time.perf_counter() - began)
        calls: dict[str, Callable[[Floats], object]] = {
            "search by meaning": near,
            "search among outputs": lambda vector: near(vector, part="output"),
            "search with a filter": lambda vector: near(vector, Filter(models=("story-7m-Q8_0",))),
            "page 100 of a search": lambda vector: near(vector, offset=100 * 200),
        }
        beside = f"first of all {first_ms:.0f} ms; {2 * total:,} vectors of {DIM}"
        rows = [
            at_most(name, _ms(call, _unit(random, num_rounds)), SEARCH_MS, beside, "ms") for name, call in calls.items()
        ]
        rows.append(Row("what is unread", _ms(lambda _: history.vectors.unread(MODEL.hash, 64), [None] * 5), "ms"))
    if kept_per_s:
        rows.append(Row("vectors kept", kept_per_s, "a second"))
    return rows


def _fill(history: History) -> float:
    """Trials and their vectors; gives how many vectors were kept a second."""
    random = np.random.default_rng(0)
    for first in range(0, NUM_TRIALS, CHUNK):
        moments = [FIRST_DAY + timedelta(minutes=number) for number in range(first, first + CHUNK)]
        trials = pa.Table.from_pylist([trial_row(id_at(moment, random), moment, random) for moment in moments])
        history.file.write(partial(insert_rows, table="trials", rows=trials)).result()
    history.vectors.begin(MODEL)
    seconds = 0.0
    while unread := history.vectors.unread(MODEL.hash, CHUNK):
        vectors = _unit(random, len(unread))
        began = time.perf_counter()
        history.vectors.keep(MODEL.hash, unread, vectors, np.zeros(len(unread), np.bool_))
        seconds += time.perf_counter() - began
    return 2 * NUM_TRIALS / seconds


def _unit(random: np.random.Generator, num: int) -> Floats:
    vectors = random.standard_normal((num, DIM), dtype=np.float32)
    lengths: Floats = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / lengths


def _ms(call: Callable[[Any], object], vectors: Iterable[Any]) -> float:
    """Milliseconds of a call, the median over the vectors."""
    taken = []
    for vector in vectors:
        began = time.perf_counter()
        call(vector)
        taken.append(1e3 * (time.perf_counter() - began))
    return statistics.median(taken)
