"""Entries of a comparison: configurations of several runs with their settings, machine, versions and differences."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from engine.bench.analysis.rounds import APART, Rounds
from engine.bench.analysis.series import best_of
from engine.bench.analysis.summary import CellSummary, first_measured, medians_of
from engine.bench.planning.axes import AXES_BY_NAME
from engine.bench.planning.layout import parse_layout
from engine.errors import ConfigError
from engine.reference import NOTED_BY_HAND, REFERENCE
from engine.runs import IMPORTED_ROW, RunRecord, machine_label, quantisation_in
from engine.samples import Samples

Mark = Literal["other machine", "other system", "other llama.cpp", "unknown machine", "noted by hand", "reference"]

NOTED = (REFERENCE, NOTED_BY_HAND)
"""Origins of runs that hold figures from notes: of these only NOTED_METRIC is used, and it gets no verdict."""

NOTED_METRIC = "end_to_end_per_s"

FEW = 8
"""Number of configurations up to which all are compared by default."""

OWN_SETTINGS = {
    "model": "Model",
    "quantisation": "Quantisation",
    "machine": "Machine",
    "llama.cpp": "llama.cpp",
    "logitbench": "Logitbench",
}
"""Settings of an entry that are not among its configuration's, with their labels; they come first."""

_NAMES = ("Logitbench",)
"""Words that keep their capital letter in the heading of a column, besides abbreviations."""

WORKLOAD = ("num_prompt", "num_generated", "depth", "users", "rate_per_s", "prompts", "num_texts", "num_words")
"""Settings of the workload: speeds at different workloads answer different questions."""

_HARDWARE = ("name", "cpu", "gpu", "cores", "threads", "allowed_cores", "cpu_quota", "governor", "architecture")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One configuration of one run.

    key: "RUN.CELL", see `key_of`. label: what distinguishes it among the entries of all runs. settings: those of the
    configuration and OWN_SETTINGS, by name. marks: caveats of a comparison with the baseline.
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
        """True for a figure from notes, which was not measured by this program."""
        return self.run.origin in NOTED

    @property
    def samples(self) -> Samples:
        """All samples of the configuration, including those that are not counted."""
        samples: Samples = self.run.samples[self.run.samples["cell"] == self.cell.number]
        return samples


def key_of(run_id: str, cell: int) -> str:
    """Return the key of a configuration, as used in URLs."""
    return f"{run_id}.{cell}"


def label_of(name: str) -> str:
    """Return the label of an entry's setting."""
    if name in AXES_BY_NAME:
        return AXES_BY_NAME[name].label
    return OWN_SETTINGS.get(name) or name.replace("_", " ").capitalize()


def heading(name: str) -> str:
    """Return the label of an entry's setting as the heading of a column: in lower case, except for names."""
    label = label_of(name)
    first = next(iter(label.split(maxsplit=1)), "")
    return label if first in _NAMES or first[1:] != first[1:].lower() else label[:1].lower() + label[1:]


def shown(name: str, value: Any) -> str:
    """Format a setting's value for a table, without words that the column heading already has."""
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
    """Candidates for a comparison: all measured entries by key, the default keys, and the rounds of each run."""

    entries: dict[str, Entry]
    first: list[str]
    rounds: dict[str, Rounds]


def offer(runs: Iterable[RunRecord]) -> Offer:
    """Return every measured configuration of the runs as an entry, not yet marked.

    The default choice is all of them where they are few, else of each run the first and the one with the best median.
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
        main = first_measured(cells, run.question)
        judged = [cell for cell in cells if main in cell.metrics]
        entries |= {entry.key: entry for entry in (_entry(run, cell, name) for cell in cells)}
        chosen += dict.fromkeys(key_of(run.id, cell.number) for cell in (judged[0], best_of(judged, main)))
    return Offer(entries, list(entries) if len(entries) <= FEW else chosen, rounds)


def marks_of(entry: Entry, baseline: Entry) -> tuple[Mark, ...]:
    """Return how an entry's machine and versions differ from the baseline's; for an entry from notes, its source."""
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
    """Return True if both entries were measured in the same rounds."""
    return entry.run.id == other.run.id and entry.run.origin not in APART


def in_order(names: Iterable[str]) -> list[str]:
    """Return names of settings, each once: OWN_SETTINGS, then the axes, then the others in the order given."""
    given = dict.fromkeys(names)
    known = [name for name in (*OWN_SETTINGS, *AXES_BY_NAME) if name in given]
    return list(dict.fromkeys([*known, *given]))


def hardware_of(machine: Mapping[str, Any]) -> str:
    """Return a machine's hardware, whatever software runs on it, as text to compare; empty where nothing is known."""
    known = {name: machine[name] for name in _HARDWARE if machine.get(name)}
    memory = machine.get("memory_bytes")
    if isinstance(memory, int | float):
        known["memory_gb"] = round(memory / 1e9)
    return json.dumps(known, sort_keys=True, default=str) if known else ""


def llama_of(machine: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fingerprint's entry on llama.cpp's libraries; empty where it has none."""
    found = machine.get("llama")
    return found if isinstance(found, Mapping) else {}


def llama_version(versions: Mapping[str, str]) -> str:
    """Return the llama.cpp version of a run: that of the Python package, else the one given by imported rows."""
    return versions.get("llama-cpp-python") or versions.get("llama.cpp") or ""


def _entry(run: RunRecord, cell: CellSummary, name: str) -> Entry:
    return Entry(
        key=key_of(run.id, cell.number),
        label=" · ".join(part for part in (name, cell.label) if part) or "the only configuration",
        run=run,
        cell=cell,
        machine_hash=str(run.machine.get("hash", "")),
        settings=_settings(run, cell),
        versions=run.versions,
    )


def _only_noted(cell: CellSummary) -> CellSummary:
    return replace(cell, metrics={NOTED_METRIC: cell.metrics[NOTED_METRIC]})


def _names(runs: Sequence[RunRecord]) -> list[str]:
    """Return each run's part of a label: empty for a single run, with its start time where the name is not unique."""
    if len(runs) == 1:
        return [""]
    num_named = Counter(run.name for run in runs)
    dates = [f"{run.created_at:%Y-%m-%d %H:%M}" for run in runs]
    return [
        run.name if run.name and num_named[run.name] == 1 else " ".join(part for part in (run.name, date) if part)
        for run, date in zip(runs, dates, strict=True)
    ]


def _settings(run: RunRecord, cell: CellSummary) -> dict[str, Any]:
    """Return OWN_SETTINGS and the settings of the configuration, as far as they are known."""
    given = dict(cell.settings)
    row = given.pop(IMPORTED_ROW, {})
    model_type = str(row.get("model_type", "")) if isinstance(row, Mapping) else ""
    path = str(given.pop("model", "") or run.plan.get("model", ""))
    model = path.replace("\\", "/").rpartition("/")[2].removesuffix(".gguf")
    quantisation = given.pop("quantisation", "") or quantisation_in(model) or quantisation_in(model_type)
    if given.get("threads_batch") == _threads(given):
        given["threads_batch"] = None
    workload = run.plan.get("workload")
    texts = workload.get("prompts") or workload.get("texts") if isinstance(workload, Mapping) else None
    if texts:
        given["prompts"] = hashlib.sha256(json.dumps(texts, default=str).encode()).hexdigest()[:8]
    own = {
        "model": model,
        "quantisation": quantisation,
        "machine": machine_label(run.machine),
        "llama.cpp": llama_version(run.versions),
        "logitbench": run.versions.get("logitbench", ""),
    }
    return {name: value for name, value in own.items() if value} | {name: _plain(given[name]) for name in given}


def _plain(value: Any) -> Any:
    """Return a scalar as it is, and any other value of an imported run as JSON text."""
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value, default=str)


def _threads(settings: Mapping[str, Any]) -> int | None:
    """Return the threads of each process where the layout gives a number, else None."""
    with suppress(ConfigError, KeyError, TypeError):
        threads = parse_layout(settings["layout"]).threads
        return threads if isinstance(threads, int) else None
    return None
