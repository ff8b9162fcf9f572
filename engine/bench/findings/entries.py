"""Cells of several runs as entries of one table: what they were told, what they ran on, what sets them apart."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from engine.bench.exchange.files import ROW
from engine.bench.findings.rounds import APART, Rounds
from engine.bench.findings.series import best_of
from engine.bench.findings.summary import CellSummary, first_measured, medians_of
from engine.bench.planning.axes import AXES_BY_NAME
from engine.bench.planning.layout import parse_layout
from engine.errors import ConfigError
from engine.reference import NOTED_BY_HAND, REFERENCE
from engine.runs import RunRecord, machine_label, quantisation_in
from engine.samples import Samples

Mark = Literal["other machine", "other system", "other llama.cpp", "unknown machine", "noted by hand", "reference"]

NOTED = (REFERENCE, NOTED_BY_HAND)
"""Origins of runs that hold figures from notes: only NOTED_METRIC of them is taken, and no verdict is given on it."""

NOTED_METRIC = "end_to_end_per_s"

FEW = 8
"""Up to so many cells are compared unless told otherwise."""

OWN_SETTINGS = {
    "model": "Model",
    "quantisation": "Quantisation",
    "machine": "Machine",
    "llama.cpp": "llama.cpp",
    "logitbench": "Logitbench",
}
"""Settings of an entry that are not among its cell's, with their labels; they come first."""

WORKLOAD = ("num_prompt", "num_generated", "depth", "users", "rate_per_s", "prompts", "num_texts", "num_words")
"""Settings that say what was asked: speeds at different work are answers to different questions."""

_HARDWARE = ("name", "cpu", "gpu", "cores", "threads", "allowed_cores", "cpu_quota", "governor", "architecture")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One cell of one run. key: "RUN.CELL", see `key_of`. label: what sets it apart among the entries of all runs.

    settings: those of the cell and OWN_SETTINGS, by name. marks: what to know before it is put beside the baseline.
    """

    key: str
    label: str
    run: RunRecord
    cell: CellSummary
    machine_hash: str
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    marks: tuple[Mark, ...] = ()

    @property
    def is_noted(self) -> bool:
        """True for a figure from notes, which nothing here has measured."""
        return self.run.origin in NOTED

    @property
    def samples(self) -> Samples:
        """All samples of the cell, those that do not count too."""
        samples: Samples = self.run.samples[self.run.samples["cell"] == self.cell.number]
        return samples


def key_of(run_id: str, cell: int) -> str:
    """The key of a cell, as addresses have it."""
    return f"{run_id}.{cell}"


def label_of(name: str) -> str:
    """What a setting of an entry is called."""
    if name in AXES_BY_NAME:
        return AXES_BY_NAME[name].label
    return OWN_SETTINGS.get(name) or name.replace("_", " ").capitalize()


def shown(name: str, value: Any) -> str:
    """A value of a setting as a table has it: no words that its heading has already."""
    if value is None:
        axis = AXES_BY_NAME.get(name)
        return axis.unset if axis else ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if name == "layout":
        with suppress(ConfigError):
            return AXES_BY_NAME[name].show(value)
    return f"{value:,}" if isinstance(value, int | float) else str(value)


class Offer(NamedTuple):
    """What runs have to compare: all measured cells by key, the keys to begin with, and the rounds of each run."""

    entries: dict[str, Entry]
    first: list[str]
    rounds: dict[str, Rounds]


def offer(runs: Iterable[RunRecord]) -> Offer:
    """Every cell of the runs that was measured, as yet without marks.

    To begin with: all where they are few, else of each run the first cell and the one with the best median.
    """
    known = list({run.id: run for run in runs}.values())
    entries: dict[str, Entry] = {}
    chosen: list[str] = []
    rounds = {run.id: Rounds.of(run.samples) for run in known}
    for run, name in zip(known, _names(known), strict=True):
        cells = [cell for cell in medians_of(run, rounds[run.id]) if cell.metrics]
        if run.origin in NOTED:
            cells = [_only_noted(cell) for cell in cells if NOTED_METRIC in cell.metrics]
        if not cells:
            continue
        main = first_measured(cells)
        judged = [cell for cell in cells if main in cell.metrics]
        entries |= {entry.key: entry for entry in (_entry(run, cell, name) for cell in cells)}
        chosen += dict.fromkeys(key_of(run.id, cell.number) for cell in (judged[0], best_of(judged, main)))
    return Offer(entries, list(entries) if len(entries) <= FEW else chosen, rounds)


def marks_of(entry: Entry, baseline: Entry) -> tuple[Mark, ...]:
    """What sets an entry's surroundings apart from the baseline's; where it comes from, if from notes."""
    if entry.is_noted:
        return ("reference",) if entry.run.origin == REFERENCE else ("noted by hand",)
    ours, theirs = entry.run.machine, baseline.run.machine
    if entry.machine_hash and entry.machine_hash == baseline.machine_hash:
        return ()
    if not (hardware_of(ours) and hardware_of(theirs)):
        return () if entry.run.id == baseline.run.id else ("unknown machine",)
    found: list[Mark] = []
    if hardware_of(ours) != hardware_of(theirs):
        found.append("other machine")
    elif ours.get("system") != theirs.get("system"):
        found.append("other system")
    if (llama_version(entry.versions), llama_of(ours)) != (llama_version(baseline.versions), llama_of(theirs)):
        found.append("other llama.cpp")
    return tuple(found)


def is_paired(entry: Entry, other: Entry) -> bool:
    """True where both were measured in the same rounds."""
    return entry.run.id == other.run.id and entry.run.origin not in APART


def in_order(names: Iterable[str]) -> list[str]:
    """Names of settings, each once: OWN_SETTINGS, then those that are axes, then the others as they come."""
    given = dict.fromkeys(names)
    known = [name for name in (*OWN_SETTINGS, *AXES_BY_NAME) if name in given]
    return list(dict.fromkeys([*known, *given]))


def hardware_of(machine: Mapping[str, Any]) -> str:
    """What a machine is, whatever runs on it, as text to compare; empty where nothing is known of it."""
    known = {name: machine[name] for name in _HARDWARE if machine.get(name)}
    memory = machine.get("memory_bytes")
    if isinstance(memory, int | float):
        known["memory_gb"] = round(memory / 1e9)
    return json.dumps(known, sort_keys=True, default=str) if known else ""


def llama_of(machine: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a fingerprint says of llama.cpp's libraries; nothing where it does not."""
    found = machine.get("llama")
    return found if isinstance(found, Mapping) else {}


def llama_version(versions: Mapping[str, str]) -> str:
    """Version of llama.cpp that a run was measured with: of the Python package, else as its rows told it."""
    return versions.get("llama-cpp-python") or versions.get("llama.cpp") or ""


def _entry(run: RunRecord, cell: CellSummary, name: str) -> Entry:
    return Entry(
        key=key_of(run.id, cell.number),
        label=" · ".join(part for part in (name, cell.label) if part) or "the one cell",
        run=run,
        cell=cell,
        machine_hash=str(run.machine.get("hash", "")),
        settings=_settings(run, cell),
        versions=run.versions,
    )


def _only_noted(cell: CellSummary) -> CellSummary:
    return replace(cell, metrics={NOTED_METRIC: cell.metrics[NOTED_METRIC]})


def _names(runs: Sequence[RunRecord]) -> list[str]:
    """What a label says of each run: nothing where there is only one; when it began where a name does not tell."""
    if len(runs) == 1:
        return [""]
    num_named = Counter(run.name for run in runs)
    dates = [f"{run.created_at:%Y-%m-%d %H:%M}" for run in runs]
    return [
        run.name if run.name and num_named[run.name] == 1 else " ".join(part for part in (run.name, date) if part)
        for run, date in zip(runs, dates, strict=True)
    ]


def _settings(run: RunRecord, cell: CellSummary) -> dict[str, Any]:
    """OWN_SETTINGS and those of the cell, as far as they are told."""
    given = dict(cell.settings)
    row = given.pop(ROW, {})
    model_type = str(row.get("model_type", "")) if isinstance(row, Mapping) else ""
    path = str(given.pop("model", "") or run.plan.get("model", ""))
    model = path.replace("\\", "/").rpartition("/")[2].removesuffix(".gguf")
    told = given.pop("quantisation", "") or quantisation_in(model) or quantisation_in(model_type)
    if given.get("threads_batch") == _threads(given):
        given["threads_batch"] = None
    workload = run.plan.get("workload")
    texts = workload.get("prompts") or workload.get("texts") if isinstance(workload, Mapping) else None
    if texts:
        given["prompts"] = hashlib.sha256(json.dumps(texts, default=str).encode()).hexdigest()[:8]
    own = {
        "model": model,
        "quantisation": told,
        "machine": machine_label(run.machine),
        "llama.cpp": llama_version(run.versions),
        "logitbench": run.versions.get("logitbench", ""),
    }
    return {name: value for name, value in own.items() if value} | {name: _plain(given[name]) for name in given}


def _plain(value: Any) -> Any:
    """A single value; what a foreign run says with more than one, as text."""
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value, default=str)


def _threads(settings: Mapping[str, Any]) -> int | None:
    """Threads of each process, where the layout tells a number."""
    with suppress(ConfigError, KeyError, TypeError):
        threads = parse_layout(settings["layout"]).threads
        return threads if isinstance(threads, int) else None
    return None
