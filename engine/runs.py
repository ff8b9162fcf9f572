"""What a benchmark run leaves behind, as plain values: the run, its cells, its samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from engine.samples import Samples, no_samples

RunStatus = Literal["running", "done", "stopped", "interrupted", "failed"]
CellStatus = Literal["open", "done", "failed", "refused"]


@dataclass(frozen=True, kw_only=True)
class CellRecord:
    """One configuration: settings by axis name (resolved), how it ended, and what is measured once.

    facts: load_cold_s, load_warm_s, interpreter_s, first_token_s, rest_s (seconds), resident_share (part of the file in
    the page cache before the cold load), repetitions (of the workload in one sample), and what a question adds.
    """

    number: int
    label: str
    settings: Mapping[str, Any]
    status: CellStatus = "open"
    reason: str = ""
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run. plan: the benchmark's Plan as plain values; machine: its fingerprint; outcome: what a question found.

    An `origin` other than "measured" names where an imported run came from.
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
    """One line of a list of runs; `sentence` is the run's first line, empty until it has one."""

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
