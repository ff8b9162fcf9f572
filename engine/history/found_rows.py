"""Search result rows, by column, for the keys of one page and in their order."""

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any
from uuid import UUID

import msgspec

from engine.history import figures
from engine.history.conditions import CELL_MODEL, CELLS, RUNS, TEMPERATURE, TRIAL_FIGURES, TRIALS
from engine.history.database_writer import fetch
from engine.history.read_cursor import ReadCursor
from engine.history.trials import OUTPUT_CHARACTERS
from engine.runs import machine_label, quantisation_in
from engine.samples import METRICS_BY_NAME

Row = dict[str, Any]

_MARKED = """coalesce(marks.tags, []) AS tags, coalesce(marks.note, '') AS note,
    coalesce(marks.is_starred, false) AS is_starred, coalesce(marks.is_archived, false) AS is_archived"""
_IDS = "(SELECT unnest($ids::UUID[]))"
_SAMPLES = f"""
    SELECT run_id, count(*) FILTER (NOT is_replaced) AS num_samples, count(*) FILTER (is_replaced) AS num_replaced,
        count(*) FILTER (NOT is_replaced AND flag != 'clean') AS num_disturbed
    FROM samples WHERE run_id IN {_IDS} GROUP BY run_id"""
"""Numbers of samples, as in engine.bench.analysis.disturbance."""

_RUNS = f"""
    SELECT runs.id, created_at, name, question, status, origin, model_name, machine_hash, machine,
        (SELECT count(*) FROM cells WHERE run_id = runs.id) AS num_cells,
        coalesce(num_samples, 0) AS num_samples, coalesce(num_disturbed, 0) AS num_disturbed,
        coalesce(num_replaced, 0) AS num_replaced, best, best_metric, sentence, {_MARKED}
    FROM {RUNS} LEFT JOIN ({figures.best_of_runs(f"run_id IN {_IDS}")}) AS figures ON figures.run_id = runs.id
        LEFT JOIN ({_SAMPLES}) AS taken ON taken.run_id = runs.id
    WHERE runs.id IN {_IDS}"""
_CELLS = f"""
    WITH {figures.CHOSEN}
    SELECT cells.run_id, cells.number AS cell, created_at, runs.name, cells.label, question, cells.status, reason,
        origin, {CELL_MODEL} AS model_name, machine_hash, machine, settings, num_counted, {", ".join(METRICS_BY_NAME)},
        {_MARKED}
    FROM {CELLS} JOIN chosen ON chosen.run_id = cells.run_id AND chosen.cell = cells.number
        LEFT JOIN ({figures.by_cell(METRICS_BY_NAME, figures.IN_CHOSEN)}) AS figures
        ON figures.run_id = cells.run_id AND figures.cell = cells.number"""
_OF_STEPS = {
    "num_generated": "coalesce(of_steps.num_generated, 0)",
    "lowest_p": "of_steps.lowest_p",
    "slowest_s": "of_steps.slowest_s",
}
_STEPS = f"""
    SELECT trial_id, count(*) AS num_generated, exp(min(logprob)) AS lowest_p,
        max(elapsed_s) FILTER (position > 0) AS slowest_s
    FROM steps WHERE NOT is_prompt AND trial_id IN {_IDS} GROUP BY trial_id"""
"""Figures of TRIAL_FIGURES from one pass over the steps of a page: with one for each figure, 200 trials took four times
as long."""

_TRIALS = f"""
    SELECT trials.id, created_at, title, text[1:{OUTPUT_CHARACTERS}] AS output_start, model_name,
        model_quantisation AS quantisation, {TEMPERATURE} AS temperature,
        {", ".join(f"{expression} AS {name}" for name, expression in (TRIAL_FIGURES | _OF_STEPS).items())}, label,
        {_MARKED}
    FROM {TRIALS} LEFT JOIN ({_STEPS}) AS of_steps ON of_steps.trial_id = trials.id WHERE trials.id IN {_IDS}"""


def run_rows(cursor: ReadCursor, keys: Sequence[tuple[UUID]]) -> list[Row]:
    """Return a row per run.

    num_samples, num_disturbed: both without the num_replaced samples that were measured again. best: the median of its
    best configuration by best_metric; both None without samples.
    """
    ids = [id for (id,) in keys]
    rows = {row["id"]: _of_run(row) for row in fetch(cursor.execute(_RUNS, {"ids": ids}))}
    return [rows[id] for id in ids]


def cell_rows(cursor: ReadCursor, keys: Sequence[tuple[UUID, int]]) -> list[Row]:
    """Return a row per configuration: its settings by name and the medians of its metrics.

    A setting that is not a plain value, or has the name of another column, is left out.
    """
    values = {"ids": [id for id, _ in keys], "numbers": [number for _, number in keys]}
    rows = {(row["run_id"], row["cell"]): _of_cell(row) for row in fetch(cursor.execute(_CELLS, values))}
    return [rows[key] for key in keys]


def trial_rows(cursor: ReadCursor, keys: Sequence[tuple[UUID]]) -> list[Row]:
    """Return a row per trial."""
    ids = [id for (id,) in keys]
    rows = {row["id"]: _plain(row) for row in fetch(cursor.execute(_TRIALS, {"ids": ids}))}
    return [rows[id] for id in ids]


def plain_settings(settings: str) -> dict[str, Any]:
    """Return the settings of a configuration that are plain values, from their JSON."""
    values: Mapping[str, Any] = msgspec.json.decode(settings)
    return {name: value for name, value in values.items() if not isinstance(value, dict | list)}


def _of_run(row: Row) -> Row:
    quantisations = dict.fromkeys(map(quantisation_in, row["model_name"].split(", ")))
    return _with_machine(row, ", ".join(filter(None, quantisations)))


def _of_cell(row: Row) -> Row:
    settings = plain_settings(row.pop("settings"))
    noted = str(settings.pop("quantisation", None) or "")
    shown = _with_machine(row, quantisation_in(row["model_name"]) or noted)
    return {**shown, **{name: value for name, value in settings.items() if name not in shown}}


def _with_machine(row: Row, quantisation: str) -> Row:
    """Return the row with the machine's label instead of its JSON, and the quantisation after the model's name."""
    shown: Row = {}
    for name, value in _plain(row).items():
        shown[name] = machine_label(msgspec.json.decode(value)) if name == "machine" else value
        if name == "model_name":
            shown["quantisation"] = quantisation
    return shown


def _plain(row: Row) -> Row:
    """Return the row with ids as text and an aware time (UTC)."""
    ids: Row = {name: str(row[name]) for name in ("id", "run_id") if name in row}
    return {**row, **ids, "created_at": row["created_at"].replace(tzinfo=UTC)}
