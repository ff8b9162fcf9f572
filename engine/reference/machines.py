"""Timings of other machines as runs, so that they can be compared like runs; marked by their origin."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from engine.errors import ConfigError
from engine.ids import content_id
from engine.reference.lines import NotedTiming
from engine.reference.tables import LoadTiming, ReferenceTiming, load_timings, reference_timings
from engine.runs import CellRecord, RunRecord
from engine.samples import Samples, make_sample
from engine.units import counted, digits

REFERENCE = "reference"
"""Origin of the bundled runs."""

NOTED_BY_HAND = "noted by hand"
"""Origin of the runs noted by users."""

NAME_CHARACTERS = 200


class _Timing(NamedTuple):
    """Source of one sample: a configuration, its tokens over total seconds, and its other noted facts."""

    settings: dict[str, Any]
    tokens_per_s: float
    seconds: float | None
    facts: dict[str, float | None]


def reference_runs() -> tuple[RunRecord, ...]:
    """Return the machines of the notes, one run each, with stable ids.

    A configuration that was noted twice has two samples. Samples have end_to_end_per_s alone, tokens over total
    seconds, and duration_s where the seconds are known. facts: noted_per_s, the speed as the note rounds it;
    noted_memory_gb, by a method that was not noted, so never a figure of PSS; num_tokens; load_cold_s and load_warm_s.
    machine: name, cores, usd_per_day, noted, source. outcome: a sentence, and no winner: notes give no verdict.
    """
    return tuple(_reference_runs().values())


def reference_run(run_id: str) -> RunRecord | None:
    """Return the run with this id; None where no machine of the notes has it."""
    return _reference_runs().get(run_id)


def noted_run(timings: Sequence[NotedTiming], *, machine: str, model: str = "", name: str = "") -> RunRecord:
    """Return a run of lines noted on `machine` with `model`, in the form of `reference_runs`.

    Its id is derived from its content, so that the same notes saved twice are one run. Raises ConfigError where there
    is no timing or no name of the machine.
    """
    machine, model, name = (_checked(*pair) for pair in (("machine", machine), ("model", model), ("name", name)))
    if not timings or not machine:
        raise ConfigError("noted timings need a machine name and at least one line: fill in both")
    said = [machine, model, name, [timing._replace(line=0) for timing in timings]]
    return _run(
        content_id(json.dumps(said).encode()),
        {"name": machine},
        [_of_line(timing, model) for timing in timings],
        name=name or machine,
        created_at=datetime.now(UTC),
        origin=NOTED_BY_HAND,
    )


@cache
def _reference_runs() -> dict[str, RunRecord]:
    rows: tuple[ReferenceTiming | LoadTiming, ...] = (*reference_timings(), *load_timings())
    by_machine: dict[str, list[ReferenceTiming | LoadTiming]] = {}
    for row in rows:
        by_machine.setdefault(row.machine, []).append(row)
    runs = (_reference_run(machine, own) for machine, own in by_machine.items())
    return {run.id: run for run in runs}


def _reference_run(machine: str, rows: Sequence[ReferenceTiming | LoadTiming]) -> RunRecord:
    first = rows[0]
    about: dict[str, Any] = {"name": machine, "noted": first.noted, "source": first.source}
    if isinstance(first, ReferenceTiming):
        about |= {"cores": first.cores} | ({"usd_per_day": first.usd_per_day} if first.usd_per_day else {})
    year, _, month = first.noted.partition("-")
    return _run(
        content_id(f"reference machine {machine}".encode()),
        about,
        [_of_load(row) if isinstance(row, LoadTiming) else _of_reference(row) for row in rows],
        name=machine,
        created_at=datetime(int(year), int(month or 1), 1, tzinfo=UTC),
        origin=REFERENCE,
    )


def _of_reference(row: ReferenceTiming) -> _Timing:
    worked_out = row.num_tokens / row.seconds if row.num_tokens and row.seconds else row.tokens_per_s
    settings = {"quantisation": row.quantisation, "variant": row.variant, "engine": row.engine}
    return _Timing(
        {"model": row.model, **settings, **_layout(row.instances, row.threads)},
        worked_out,
        row.seconds,
        {"noted_per_s": row.tokens_per_s, "noted_memory_gb": row.memory_gb, "num_tokens": row.num_tokens},
    )


def _of_load(row: LoadTiming) -> _Timing:
    settings = {"quantisation": row.quantisation, "engine": row.engine, "num_generated": row.max_tokens}
    return _Timing(
        {"model": row.model, **settings, **_layout(1, row.threads)},
        row.num_tokens / row.inference_s,
        row.inference_s,
        {"load_cold_s" if row.is_cold else "load_warm_s": row.load_s, "num_tokens": row.num_tokens},
    )


def _of_line(timing: NotedTiming, model: str) -> _Timing:
    return _Timing(
        {"model": model, "variant": timing.label, **_layout(timing.instances, timing.threads)},
        timing.tokens_per_s,
        timing.seconds,
        {"noted_per_s": timing.noted_per_s, "noted_memory_gb": timing.memory_gb, "num_tokens": timing.num_tokens},
    )


def _layout(instances: int, threads: int | None) -> dict[str, Any]:
    return {"instances": instances} if threads is None else {"layout": f"{instances}x{threads}"}


def _run(
    run_id: str, machine: Mapping[str, Any], timings: Sequence[_Timing], *, name: str, created_at: datetime, origin: str
) -> RunRecord:
    groups: dict[str, list[_Timing]] = {}
    for timing in timings:
        groups.setdefault(json.dumps(timing.settings), []).append(timing)
    cells = list(groups.values())
    labels = _labels([cell[0].settings for cell in cells])
    return RunRecord(
        id=run_id,
        created_at=created_at,
        name=name,
        question="speed",
        status="done",
        plan={"name": name, "model": timings[0].settings["model"], "rounds": max(map(len, cells))},
        machine={**machine, "hash": f"{origin}: {machine['name']}"},
        versions={},
        cells=tuple(_cell(number, label, cell) for number, (label, cell) in enumerate(zip(labels, cells, strict=True))),
        samples=_samples(cells, created_at.timestamp()),
        outcome={"sentence": _sentence(cells, labels), "winner": None},
        origin=origin,
    )


def _sentence(cells: Sequence[Sequence[_Timing]], labels: Sequence[str]) -> str:
    """Return a sentence on the fastest as noted, which is no verdict."""
    speeds = [float(np.median([timing.tokens_per_s for timing in cell])) for cell in cells]
    best = int(np.argmax(speeds))
    rest = f" is the fastest of {len(cells)}" if len(cells) > 1 else ""
    return f"As noted, {labels[best] or 'this machine'}{rest}: {digits(speeds[best])} tok/s end to end."


def _cell(number: int, label: str, timings: Sequence[_Timing]) -> CellRecord:
    facts: dict[str, list[float]] = {}
    for timing in timings:
        for name, value in timing.facts.items():
            if value is not None:
                facts.setdefault(name, []).append(value)
    return CellRecord(
        number=number,
        label=label,
        settings={name: value for name, value in timings[0].settings.items() if value},
        status="done",
        facts={name: float(np.median(values)) for name, values in facts.items()},
    )


def _labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return for each configuration its values of the settings that differ; the layout where none differs."""
    names = dict.fromkeys(name for each in settings for name in each)
    differing = [name for name in names if len({each.get(name) for each in settings}) > 1] or ["layout", "instances"]
    return [" · ".join(filter(None, (_shown(name, each.get(name)) for name in differing))) for each in settings]


def _shown(name: str, value: Any) -> str:
    if name == "instances":
        return counted(value, "instance") if value and value > 1 else ""
    return str(value or "").replace("x", " × ", 1) if name == "layout" else str(value or "")


def _samples(cells: Sequence[Sequence[_Timing]], started_at: float) -> Samples:
    made = [
        make_sample(
            cell=number,
            round=index,
            started_at=started_at,
            duration_s=timing.seconds or 0.0,
            end_to_end_per_s=timing.tokens_per_s,
        )
        for number, timings in enumerate(cells)
        for index, timing in enumerate(timings)
    ]
    samples = np.concatenate(made)
    samples["position"] = np.arange(len(samples))
    return samples


def _checked(name: str, text: str) -> str:
    text = " ".join(text.split())
    if len(text) > NAME_CHARACTERS:
        raise ConfigError(f"{name} = {text[:40]!r}…: must have up to {NAME_CHARACTERS} characters")
    return text
