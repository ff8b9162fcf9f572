"""Reference timings of other machines: those of the bundled notes, and lines noted by users."""

from engine.reference.lines import NotedTiming, read_lines
from engine.reference.machines import NOTED_BY_HAND, REFERENCE, noted_run, reference_run, reference_runs
from engine.reference.tables import (
    TABLES,
    EmbeddingTiming,
    LoadTiming,
    NotedThroughput,
    ReferenceTiming,
    embedding_timings,
    load_timings,
    noted_throughputs,
    reference_timings,
    table,
)

__all__ = [
    "NOTED_BY_HAND",
    "REFERENCE",
    "TABLES",
    "EmbeddingTiming",
    "LoadTiming",
    "NotedThroughput",
    "NotedTiming",
    "ReferenceTiming",
    "embedding_timings",
    "load_timings",
    "noted_run",
    "noted_throughputs",
    "read_lines",
    "reference_run",
    "reference_runs",
    "reference_timings",
    "table",
]
