"""The tables of reference timings that ship, read into rows."""

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
    """Generation on one machine: tokens of all instances over total seconds, prompt included; memory in GB by a method
    that was not noted. tokens_per_s is the note's own, rounded; noted: the year, or the month, that it is of."""

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
    """What a note reckoned of a machine's best figure; where as_machine is another one, the speed is an assumption.

    as_layout: instances x threads of the timing that was taken, empty where the note does not say.
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
    """Sentences embedded a second by all processes of one machine; None where the note does not say."""

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
    """Generation on rented and home machines, in the notes' order."""
    return _rows("generation", ReferenceTiming)


@cache
def noted_throughputs() -> tuple[NotedThroughput, ...]:
    """Throughput by price, as the notes reckoned it."""
    return _rows("throughput", NotedThroughput)


@cache
def load_timings() -> tuple[LoadTiming, ...]:
    """Load, inference and script time."""
    return _rows("loads", LoadTiming)


@cache
def embedding_timings() -> tuple[EmbeddingTiming, ...]:
    """Sentences embedded a second."""
    return _rows("embeddings", EmbeddingTiming)


def table(name: str) -> list[dict[str, str]]:
    """One of TABLES as it stands in its file, a dictionary a line."""
    with shipped_folder().joinpath("reference", f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def _rows(name: str, make: Callable[..., Row]) -> tuple[Row, ...]:
    """The table's lines as `make`, a class, has its fields."""
    kinds = typing.get_type_hints(make)
    return tuple(make(**{key: _value(row[key], kind) for key, kind in kinds.items()}) for row in table(name))


def _value(text: str, kind: Any) -> Any:
    """The text as its column says; an empty field is None where the column allows it."""
    if isinstance(kind, types.UnionType):
        return _value(text, typing.get_args(kind)[0]) if text else None
    return text == "yes" if kind is bool else kind(text)
