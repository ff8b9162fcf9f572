"""What a filter can choose from: the values that the runs or trials of this history have."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from engine.errors import ConfigError
from engine.history.conditions import RUNS, TRIAL_FIGURES, TRIALS, model_names
from engine.history.found_rows import plain_settings
from engine.history.marks import Kind
from engine.history.owned_file import Cursor
from engine.runs import machine_label, quantisation_in

HASH_CHARACTERS = 6


class Choices(NamedTuple):
    """Values of each field of a Filter that at least one run (trial) has, in alphabetical order.

    machines: label by hash. ranges: lowest and highest number by name, of settings, or of sampling and figures.
    """

    models: list[str]
    quantisations: list[str]
    machines: dict[str, str]
    tags: list[str]
    questions: list[str]
    origins: list[str]
    ranges: dict[str, tuple[float, float]]


def choices_of(cursor: Cursor, kind: Kind) -> Choices:
    """Choices among runs with their cells, or among trials; raises ConfigError for another kind."""
    if kind == "run":
        return _of_runs(cursor)
    if kind == "trial":
        return _of_trials(cursor)
    raise ConfigError(f"kind = {kind!r}: must be run or trial")


def _of_runs(cursor: Cursor) -> Choices:
    models = model_names(cursor)
    return Choices(
        models=models,
        quantisations=sorted(set(filter(None, map(quantisation_in, models)))),
        machines=_machines(cursor),
        tags=_tags(cursor, RUNS),
        questions=_distinct(cursor, "runs", "question"),
        origins=_distinct(cursor, "runs", "origin"),
        ranges=_ranges(map(plain_settings, _distinct(cursor, "cells JOIN runs ON runs.id = cells.run_id", "settings"))),
    )


def _of_trials(cursor: Cursor) -> Choices:
    sampling = map(msgspec.json.decode, _distinct(cursor, "trials", "sampling"))
    return Choices(
        models=_distinct(cursor, "trials", "model_name"),
        quantisations=_distinct(cursor, "trials", "model_quantisation"),
        machines={},
        tags=_tags(cursor, TRIALS),
        questions=[],
        origins=_distinct(cursor, "trials", "label"),
        ranges=_ranges(sampling) | _figures(cursor),
    )


def _distinct(cursor: Cursor, source: str, column: str) -> list[str]:
    rows = cursor.execute(f"SELECT DISTINCT {column} AS it FROM {source} WHERE deleted_at IS NULL ORDER BY it")
    return [value for (value,) in rows.fetchall() if value]


def _tags(cursor: Cursor, source: str) -> list[str]:
    rows = cursor.execute(f"SELECT DISTINCT unnest(tags) AS tag FROM {source} WHERE deleted_at IS NULL ORDER BY tag")
    return [tag for (tag,) in rows.fetchall()]


def _machines(cursor: Cursor) -> dict[str, str]:
    """Labels of machines with a fingerprint, told apart by the start of its hash where they read the same."""
    rows = cursor.execute(
        "SELECT machine_hash, any_value(machine) FROM runs WHERE deleted_at IS NULL AND machine_hash <> '' GROUP BY ALL"
    ).fetchall()
    labels = {hash: machine_label(msgspec.json.decode(machine)) or "unknown machine" for hash, machine in rows}
    counts = Counter(labels.values())
    for hash, label in labels.items():
        if counts[label] > 1:
            labels[hash] = f"{label} ({hash[:HASH_CHARACTERS]})"
    return dict(sorted(labels.items(), key=lambda item: item[1]))


def _ranges(values: Iterable[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for each in values:
        for name, value in each.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                low, high = found.get(name, (value, value))
                found[name] = min(low, value), max(high, value)
    return dict(sorted(found.items()))


def _figures(cursor: Cursor) -> dict[str, tuple[float, float]]:
    """Ranges of what trials measured."""
    ends = ", ".join(f"min({name}), max({name})" for name in TRIAL_FIGURES)
    columns = ", ".join(f"{expression} AS {name}" for name, expression in TRIAL_FIGURES.items())
    row = cursor.execute(f"SELECT {ends} FROM (SELECT {columns} FROM {TRIALS} WHERE deleted_at IS NULL)").fetchone()
    pairs = zip(TRIAL_FIGURES, zip(*[iter(row or ())] * 2, strict=True), strict=True)
    return {name: (low, high) for name, (low, high) in pairs if low is not None}
