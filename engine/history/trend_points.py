"""Trend of one configuration over time: its figures in every run that measured it."""

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any
from uuid import UUID

import msgspec
import numpy as np

from engine.errors import ConfigError, HistoryError
from engine.history import figures
from engine.history.conditions import CELL_MODEL, RUNS
from engine.history.database_writer import fetch
from engine.history.found_rows import plain_settings
from engine.history.read_cursor import ReadCursor
from engine.history.trials import as_uuid
from engine.runs import TrendPoint
from engine.samples import METRICS_BY_NAME
from engine.stats import Interval, group_median_intervals

_CELLS = f"""
    SELECT run_id, number, {CELL_MODEL} AS model, settings, plan -> '/workload' AS workload
    FROM cells JOIN runs ON runs.id = run_id WHERE deleted_at IS NULL"""
_WORKLOAD = ("asked", "prompts", "arrival", "duration_s", "texts", "spread")
"""Fields of a plan's workload that apply to every configuration and are not among its settings."""


def trend_points(cursor: ReadCursor, run_id: str, cell: int, metric: str) -> list[TrendPoint]:
    """Return a point for every run with the same configuration and a figure of the metric, in order of time.

    The same configuration means equal settings apart from the model's folder, a model of the same name (which includes
    its quantisation), and the same workload. Raises HistoryError where there is no such configuration, ConfigError for
    an unknown metric.
    """
    if metric not in METRICS_BY_NAME:
        raise ConfigError(f"metric = {metric!r}: must be one of {', '.join(METRICS_BY_NAME)}")
    given = fetch(cursor.execute(f"{_CELLS} AND run_id = ? AND number = ?", [as_uuid(run_id), cell]))
    if not given:
        raise HistoryError(f"There is no configuration {cell} of a run {run_id!r}: it was deleted or never saved.")
    wanted = _configuration(given[0])
    others = fetch(cursor.execute(f"{_CELLS} AND model = ? ORDER BY run_id, number DESC", [given[0]["model"]]))
    numbers = {row["run_id"]: row["number"] for row in others if _configuration(row) == wanted}
    return _points(cursor, {**numbers, given[0]["run_id"]: cell}, metric)


def _configuration(row: Mapping[str, Any]) -> dict[str, Any]:
    workload = msgspec.json.decode(row["workload"] or "{}")
    asked = {f"workload.{name}": workload.get(name) for name in _WORKLOAD}
    return {**plain_settings(row["settings"]), **asked, "model": row["model"]}


def _points(cursor: ReadCursor, numbers: Mapping[UUID, int], metric: str) -> list[TrendPoint]:
    """Return a point for each run that has a figure. numbers: the configuration's number, by run."""
    query = f"""
        WITH {figures.CHOSEN}
        SELECT run_id, round, {metric} FROM ({figures.by_round([metric], figures.IN_CHOSEN)})
        WHERE {metric} IS NOT NULL ORDER BY run_id, round"""
    chosen = {"ids": list(numbers), "numbers": list(numbers.values())}
    medians: dict[UUID, dict[int, float]] = {}
    for run_id, number, value in cursor.execute(query, chosen).fetchall():
        medians.setdefault(run_id, {})[number] = value
    intervals = dict(zip(medians, _intervals(list(medians.values())), strict=True))
    runs = cursor.execute(
        "SELECT runs.id, created_at, name, machine_hash, machine, versions, coalesce(marks.note, '') AS note "
        f"FROM {RUNS} WHERE runs.id IN (SELECT unnest(?::UUID[])) ORDER BY created_at, runs.id",
        [list(medians)],
    )
    return [
        TrendPoint(
            run_id=str(row["id"]),
            created_at=row["created_at"].replace(tzinfo=UTC),
            machine_hash=row["machine_hash"],
            machine=msgspec.json.decode(row["machine"]),
            versions=msgspec.json.decode(row["versions"]),
            value=intervals[row["id"]].value,
            low=intervals[row["id"]].low,
            high=intervals[row["id"]].high,
            by_round=medians[row["id"]],
            name=row["name"],
            note=row["note"],
        )
        for row in fetch(runs)
    ]


def _intervals(groups: Sequence[Mapping[int, float]]) -> list[Interval]:
    """Return the confidence interval of the median of each group's values."""
    values = np.array([value for group in groups for value in group.values()], np.float64)
    return group_median_intervals(values, np.repeat(np.arange(len(groups)), list(map(len, groups))), len(groups))
