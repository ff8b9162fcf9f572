"""Records of benchmark runs, as plain values: the run, its configurations, its samples."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from engine.samples import Samples, no_samples

RunStatus = Literal["running", "done", "stopped", "interrupted", "failed"]
CellStatus = Literal["open", "done", "failed", "refused"]

NODE, CLUSTER = "node ", "cluster of "
"""Beginnings of the origin of a run: of one node of a cluster, whose name follows, and of all its nodes together."""

IMPORTED_ROW = "llama_bench"
"""Setting of an imported configuration: its row without samples, as llama-bench wrote it."""

_QUANTISATION = re.compile(r"(?i)(?<![a-z0-9])(i?q\d(?:_[a-z0-9]+)*|b?f16|f32|tq\d_\d|mxfp4|nvfp4)(?![a-z0-9])")


@dataclass(frozen=True, kw_only=True)
class CellRecord:
    """Record of one configuration: resolved settings by axis name, final status, and one-off measurements.

    facts: load_cold_s, load_warm_s, interpreter_s, first_token_s, rest_s (seconds), resident_share (share of the file
    in the page cache before the cold load), repetitions (of the workload in one sample), and values that a question
    adds.
    """

    number: int
    label: str
    settings: Mapping[str, Any]
    status: CellStatus = "open"
    reason: str = ""
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Record of one run. plan: the Plan as plain values; machine: its fingerprint; outcome: result of the question.

    An `origin` other than "measured" names the source of an imported run.
    """

    id: str
    created_at: datetime
    name: str
    question: str
    status: RunStatus
    plan: Mapping[str, Any]
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    cells: tuple[CellRecord, ...]
    samples: Samples = field(default_factory=no_samples)
    outcome: Mapping[str, Any] = field(default_factory=dict)
    origin: str = "measured"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Summary of a run for lists; `sentence` is its headline result, empty until there is one."""

    id: str
    created_at: datetime
    name: str
    question: str
    status: RunStatus
    origin: str
    model_name: str
    machine_hash: str
    num_cells: int
    num_samples: int
    sentence: str


@dataclass(frozen=True, kw_only=True)
class TrendPoint:
    """Trend point of one configuration in one run: the median over rounds with its 95 % confidence interval.

    by_round: the median of each round. machine, versions: as in RunRecord; machine_hash: the fingerprint's hash, empty
    where the run has none. name, note: of the run.
    """

    run_id: str
    created_at: datetime
    machine_hash: str
    versions: Mapping[str, str]
    value: float
    low: float
    high: float
    by_round: Mapping[int, float]
    machine: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    note: str = ""


def machine_label(machine: Mapping[str, Any]) -> str:
    """Return a machine's label: its name if it has one, else its processor, with the number of usable cores."""
    name = str(machine.get("name") or machine.get("cpu") or machine.get("architecture") or "")
    cores = machine.get("allowed_cores")
    if not name or not isinstance(cores, list):
        return name
    return f"{name}, {len(cores)} of {machine.get('threads', len(cores))} cores"


def quantisation_in(text: str) -> str:
    """Return the quantisation named in a model's name, such as Q4_K_M; empty if there is none."""
    found = _QUANTISATION.search(text)
    return found[0].upper() if found else ""
