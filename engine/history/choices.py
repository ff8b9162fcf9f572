"""Filter choices: the values that occur among the runs or trials of this history."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from engine.errors import ConfigError
from engine.history.conditions import RUNS, TRIAL_FIGURES, TRIALS, model_names
from engine.history.found_rows import plain_settings
from engine.history.marks import Kind
from engine.history.read_cursor import ReadCursor
from engine.runs import machine_label, quantisation_in

HASH_CHARACTERS = 6

Ranges = dict[str, tuple[float, float]]
KnownRanges = dict[Kind, tuple[Any, Ranges]]
"""Ranges that were read from the history, each with a hash of what they were read from."""
_CONFIGURATIONS = "cells JOIN runs ON runs.id = cells.run_id"


class Choices(NamedTuple):
    """Values of each Filter field that occur in at least one run (trial), in alphabetical order.

    machines: label by hash. ranges: minimum and maximum by name, of settings, or of sampling parameters and figures.
    """

    models: list[str]
    quantisations: list[str]
    machines: dict[str, str]
    tags: list[str]
    questions: list[str]
    origins: list[str]
    ranges: Ranges


def choices_of(cursor: ReadCursor, kind: Kind, known: KnownRanges) -> Choices:
    """Return the choices for runs with their configurations, or for trials; raises ConfigError for another kind.

    known: ranges read before, which are read again only where the configurations, or the trials, are others.
    """
    if kind == "run":
        return _of_runs(cursor, known)
    if kind == "trial":
        return _of_trials(cursor, known)
    raise ConfigError(f"kind = {kind!r}: must be run or trial")


def _of_runs(cursor: ReadCursor, known: KnownRanges) -> Choices:
    models = model_names(cursor)
    return Choices(
        models=models,
        quantisations=sorted(set(filter(None, map(quantisation_in, models)))),
        machines=_machines(cursor),
        tags=_tags(cursor, RUNS),
        questions=_distinct(cursor, "runs", "question"),
        origins=_distinct(cursor, "runs", "origin"),
        ranges=_settings(cursor, known),
    )


def _of_trials(cursor: ReadCursor, known: KnownRanges) -> Choices:
    sampling = map(msgspec.json.decode, _distinct(cursor, "trials", "sampling"))
    return Choices(
        models=_distinct(cursor, "trials", "model_name"),
        quantisations=_distinct(cursor, "trials", "model_quantisation"),
        machines={},
        tags=_tags(cursor, TRIALS),
        questions=[],
        origins=_distinct(cursor, "trials", "label"),
        ranges=_ranges(sampling) | _figures(cursor, known),
    )


def _distinct(cursor: ReadCursor, source: str, column: str) -> list[str]:
    rows = cursor.execute(f"SELECT DISTINCT {column} AS it FROM {source} WHERE deleted_at IS NULL ORDER BY it")
    return [value for (value,) in rows.fetchall() if value]


def _tags(cursor: ReadCursor, source: str) -> list[str]:
    rows = cursor.execute(f"SELECT DISTINCT unnest(tags) AS tag FROM {source} WHERE deleted_at IS NULL ORDER BY tag")
    return [tag for (tag,) in rows.fetchall()]


def _machines(cursor: ReadCursor) -> dict[str, str]:
    """Return the labels of machines with a fingerprint, by hash; equal labels get the start of the hash appended."""
    rows = cursor.execute(
        "SELECT machine_hash, any_value(machine) FROM runs WHERE deleted_at IS NULL AND machine_hash <> '' GROUP BY ALL"
    ).fetchall()
    labels = {hash: machine_label(msgspec.json.decode(machine)) or "unknown machine" for hash, machine in rows}
    counts = Counter(labels.values())
    for hash, label in labels.items():
        if counts[label] > 1:
            labels[hash] = f"{label} ({hash[:HASH_CHARACTERS]})"
    return dict(sorted(labels.items(), key=lambda item: item[1]))


def _ranges(values: Iterable[Mapping[str, Any]]) -> Ranges:
    found: Ranges = {}
    for each in values:
        for name, value in each.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                low, high = found.get(name, (value, value))
                found[name] = min(low, value), max(high, value)
    return dict(sorted(found.items()))


def _settings(cursor: ReadCursor, known: KnownRanges) -> Ranges:
    """Return minimum and maximum of each setting of the configurations, by name."""
    hashed = f"""
        SELECT count(*), bit_xor(hash(settings))
        FROM (SELECT DISTINCT settings FROM {_CONFIGURATIONS} WHERE deleted_at IS NULL)"""
    return _unless_known(
        cursor,
        known,
        "run",
        hashed,
        lambda: _ranges(map(plain_settings, _distinct(cursor, _CONFIGURATIONS, "settings"))),
    )


def _figures(cursor: ReadCursor, known: KnownRanges) -> Ranges:
    """Return minimum and maximum of each figure of the trials, by name: of all steps, none of which ever changes."""
    hashed = "SELECT count(*), bit_xor(hash(id)) FROM trials WHERE deleted_at IS NULL"
    return _unless_known(cursor, known, "trial", hashed, lambda: _read_figures(cursor))


def _unless_known(
    cursor: ReadCursor, known: KnownRanges, kind: Kind, hashed: str, read: Callable[[], Ranges]
) -> Ranges:
    """Return ranges that were read before, or read them where the query `hashed` gives another hash than then."""
    now = cursor.execute(hashed).fetchone()
    before = known.get(kind)
    if before is None or before[0] != now:
        before = known[kind] = now, read()
    return before[1]


def _read_figures(cursor: ReadCursor) -> Ranges:
    ends = ", ".join(f"min({name}), max({name})" for name in TRIAL_FIGURES)
    columns = ", ".join(f"{expression} AS {name}" for name, expression in TRIAL_FIGURES.items())
    row = cursor.execute(f"SELECT {ends} FROM (SELECT {columns} FROM {TRIALS} WHERE deleted_at IS NULL)").fetchone()
    pairs = zip(TRIAL_FIGURES, zip(*[iter(row or ())] * 2, strict=True), strict=True)
    return {name: (low, high) for name, (low, high) in pairs if low is not None}
