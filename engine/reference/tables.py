"""Tables of the bundled reference timings, read into rows."""

import csv
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

from engine.settings import shipped_folder

TABLES = ("generation", "throughput", "loads", "embeddings", "candidates")
"""Names of the tables, each a CSV with its source."""

Row = TypeVar("Row")


class ReferenceTiming(NamedTuple):
    """Generation on one machine: tokens of all instances over total seconds, prompt included.

    memory_gb: by a method that was not noted. tokens_per_s: the note's own figure, rounded. noted: year or month of the
    timing.
    """

    machine: str
    cores: int | None
    usd_per_day: float | None
    engine: str
    model: str
    quantisation: str
    variant: str
    instances: int
    threads: int | None
    num_tokens: int | None
    seconds: float | None
    tokens_per_s: float
    memory_gb: float | None
    noted: str
    source: str


class NotedThroughput(NamedTuple):
    """Throughput by price that a note calculated from a machine's best figure.

    as_machine: where it is another machine, the speed is an assumption. as_layout: instances x threads of the timing
    used, empty where the note does not give it.
    """

    machine: str
    as_machine: str
    as_layout: str
    tokens_per_s: float
    usd_per_day: float
    ktokens_per_usd: float
    noted: str
    source: str


class LoadTiming(NamedTuple):
    """Seconds to load a model, to answer (prompt included), and of the whole program, in one iteration of it."""

    machine: str
    engine: str
    model: str
    quantisation: str
    threads: int
    max_tokens: int
    iteration: int
    is_cold: bool
    load_s: float
    inference_s: float
    script_s: float
    num_tokens: int
    noted: str
    source: str


class EmbeddingTiming(NamedTuple):
    """Sentences embedded per second by all processes of one machine; None where the note gives no value."""

    machine: str
    model: str
    engine: str
    processes: int | None
    cores_each: int | None
    sentences_per_s: float
    noted: str
    source: str


@cache
def reference_timings() -> tuple[ReferenceTiming, ...]:
    """Return the generation timings of rented and home machines, in the notes' order."""
    return _rows("generation", ReferenceTiming)


@cache
def noted_throughputs() -> tuple[NotedThroughput, ...]:
    """Return throughput by price, as the notes calculated it."""
    return _rows("throughput", NotedThroughput)


@cache
def load_timings() -> tuple[LoadTiming, ...]:
    """Return load, inference and script times."""
    return _rows("loads", LoadTiming)


@cache
def embedding_timings() -> tuple[EmbeddingTiming, ...]:
    """Return sentences embedded per second."""
    return _rows("embeddings", EmbeddingTiming)


def table(name: str) -> list[dict[str, str]]:
    """Return one of TABLES as in its file, one dictionary per line."""
    with shipped_folder().joinpath("reference", f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def _rows(name: str, make: Callable[..., Row]) -> tuple[Row, ...]:
    """Return the table's lines as instances of the class `make`, with its fields."""
    kinds = typing.get_type_hints(make)
    return tuple(make(**{key: _value(row[key], kind) for key, kind in kinds.items()}) for row in table(name))


def _value(text: str, kind: Any) -> Any:
    """Return the text as its column's type; an empty field is None where the column allows it."""
    if isinstance(kind, types.UnionType):
        return _value(text, typing.get_args(kind)[0]) if text else None
    return text == "yes" if kind is bool else kind(text)
