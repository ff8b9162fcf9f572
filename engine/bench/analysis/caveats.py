"""Caveats of a comparison: different machines, different work, different rounds, and figures from notes."""

from collections.abc import Iterable, Sequence

from engine.bench.analysis.engines import engine_name, uncompared
from engine.bench.analysis.entries import (
    NOTED_METRIC,
    WORKLOAD,
    Entry,
    Mark,
    is_paired,
    label_of,
    llama_of,
    llama_version,
    shown,
)
from engine.samples import ENGINES_QUESTION, METRICS_BY_NAME
from engine.units import counted

ELSEWHERE: dict[Mark, str] = {
    "other machine": "on another machine",
    "other system": "on another OS or kernel",
    "other llama.cpp": "with another llama.cpp",
    "unknown machine": "on an unknown machine",
}
"""Marks of entries measured elsewhere, each as the end of a sentence."""

_MOST_NAMED = 3


def caveats(entries: Sequence[Entry], baseline: Entry | None, num_missing: int) -> tuple[str, ...]:
    """Return all caveats that apply, each a sentence; num_missing: requested entries that no run has any more."""
    said = [_missing(num_missing), _mixed_kinds(entries), _mixed_work(entries), _noted(entries)]
    if baseline is not None:
        measured = [entry for entry in entries if not entry.is_noted and entry.key != baseline.key]
        said += [_elsewhere(mark, measured, baseline) for mark in ELSEWHERE]
        said += _of_engines(measured, baseline)
        said.append(_apart([entry for entry in measured if not is_paired(entry, baseline)]))
    return tuple(sentence for sentence in said if sentence)


def _missing(num: int) -> str:
    if not num:
        return ""
    is_one = num == 1
    return (
        f"{counted(num, 'selected configuration')} {'is' if is_one else 'are'} left out: "
        f"{'its run was' if is_one else 'their runs were'} deleted or took no samples."
    )


def _of_engines(measured: Sequence[Entry], baseline: Entry) -> list[str]:
    """Return the caveats for engines of the baseline's run: what they are compared with, and which ones are not."""
    run = baseline.run
    mine = [entry for entry in measured if entry.run.id == run.id]
    if run.question != ENGINES_QUESTION or not mine:
        return []
    name = engine_name(baseline.settings)
    sentence = f"Each engine of this run is compared with {name} under the same load."
    return [sentence, uncompared(run, baseline.cell.number)]


def _mixed_kinds(entries: Sequence[Entry]) -> str:
    """Return the caveat for a mix of embedding and generating entries."""
    embedding = [entry.label for entry in entries if entry.run.question == "embedding"]
    if len(embedding) in (0, len(entries)):
        return ""
    return (
        f"This compares embedding ({_list(embedding)}) with generation. They share no speed metric: only memory and "
        "processor use are comparable."
    )


def _mixed_work(entries: Sequence[Entry]) -> str:
    """Return the caveat that names the differing settings of WORKLOAD with their values."""
    mixed = {name: _values(entries, name) for name in WORKLOAD}
    named = [f"{label_of(name)} {_list(values)}" for name, values in mixed.items() if len(values) > 1]
    if not named:
        return ""
    return f"Workloads differ: {', '.join(named)}. This may explain part of the difference."


def _values(entries: Sequence[Entry], name: str) -> list[str]:
    """Return the distinct values of a setting over the entries that have it."""
    return list(dict.fromkeys(shown(name, entry.settings[name]) for entry in entries if name in entry.settings))


def _noted(entries: Sequence[Entry]) -> str:
    noted = [entry.label for entry in entries if entry.is_noted]
    if not noted:
        return ""
    metric = METRICS_BY_NAME[NOTED_METRIC]
    return (
        f"From notes, not measured here: {_list(noted)}. Only {metric.label} is known "
        f"({metric.formula}), so they have no other figures and no verdict."
    )


def _elsewhere(mark: Mark, measured: Sequence[Entry], baseline: Entry) -> str:
    marked = [entry for entry in measured if mark in entry.marks]
    if not marked:
        return ""
    facts = {_fact(mark, entry) for entry in marked} - {""}
    beside = (
        f" ({_list(sorted(facts))}; the baseline {_fact(mark, baseline)})" if facts and _fact(mark, baseline) else ""
    )
    verb = "was" if len(marked) == 1 else "were"
    return f"{_list([entry.label for entry in marked])} {verb} measured {ELSEWHERE[mark]}{beside}."


def _fact(mark: Mark, entry: Entry) -> str:
    if mark == "other llama.cpp":
        commit = str(llama_of(entry.run.machine).get("commit", ""))[:9]
        return " ".join(part for part in (llama_version(entry.versions), commit) if part)
    if mark == "other system":
        return str(entry.run.machine.get("system", ""))
    return str(entry.settings.get("machine", ""))


def _apart(entries: Sequence[Entry]) -> str:
    if not entries:
        return ""
    return (
        f"Not measured in the same rounds as the baseline: {_list([entry.label for entry in entries])}. "
        "The difference may come from the machine's state; measure both in one run to rule that out."
    )


def _list(names: Iterable[str]) -> str:
    """Join names as "A, B and C"; of many only the first few."""
    given = list(dict.fromkeys(names))
    if len(given) > _MOST_NAMED:
        given = [*given[:_MOST_NAMED], f"{len(given) - _MOST_NAMED:,} more"]
    return " and ".join(part for part in (", ".join(given[:-1]), given[-1]) if part)
