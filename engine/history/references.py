"""Reference timings in addition to the history: as rows of its lists and views of its SQL console, marked as such."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from engine.history.filters import Filter
from engine.reference import REFERENCE, load_timings, reference_runs, reference_timings
from engine.runs import RunRecord, machine_label

_SQL_TYPES = {str: "VARCHAR", int: "INTEGER", float: "DOUBLE", bool: "BOOLEAN"}


class View(NamedTuple):
    """A view of the console: its columns with DuckDB types, its rows and its meaning."""

    name: str
    columns: dict[str, str]
    rows: Sequence[tuple[Any, ...]]
    comment: str

    @property
    def sql(self) -> str:
        """The statement that creates the view for one connection."""
        values = ", ".join(f"({', '.join(map(_literal, row))})" for row in self.rows)
        typed = ", ".join(f"{name}::{kind} AS {name}" for name, kind in self.columns.items())
        named = f"rows({', '.join(self.columns)})"
        return f"CREATE TEMP VIEW {self.name} AS SELECT {typed} FROM (VALUES {values}) AS {named}"


@cache
def views() -> tuple[View, ...]:
    """Return the views of the notes' speed tables; `origin` is that of the runs made from them."""
    return (
        _view("reference_timings", reference_timings, "generation timings noted elsewhere, not measured here"),
        _view("reference_loads", load_timings, "load times noted elsewhere, not measured here"),
    )


def reference_rows(wanted: Filter) -> list[dict[str, Any]]:
    """Return a row, with its source, for each machine in the notes that matches a filter of runs.

    Filters by star, tags, archived only, ranges or machines match none of them.
    """
    if wanted.tags or wanted.is_starred or wanted.only_archived or wanted.ranges or wanted.machines:
        return []
    return [_row(run) for run in reference_runs() if _is_wanted(run, wanted)]


def _is_wanted(run: RunRecord, wanted: Filter) -> bool:
    day, models = run.created_at.date(), _models(run)
    words = f"{run.name} {run.outcome['sentence']} {run.machine['source']} {' '.join(models)}".casefold()
    return (
        all(word in words for word in wanted.text.casefold().split())
        and (not wanted.models or bool({*wanted.models} & {*models}))
        and all(
            not allowed or value in allowed
            for allowed, value in (
                (wanted.questions, run.question),
                (wanted.origins, run.origin),
                (wanted.statuses, run.status),
            )
        )
        and (wanted.since is None or day >= wanted.since)
        and (wanted.until is None or day <= wanted.until)
        and (
            not wanted.quantisations
            or any(cell.settings.get("quantisation") in wanted.quantisations for cell in run.cells)
        )
    )


def _row(run: RunRecord) -> dict[str, Any]:
    return {
        "id": run.id,
        "created_at": run.created_at,
        "name": run.name,
        "origin": REFERENCE,
        "source": run.machine["source"],
        "noted": run.machine["noted"],
        "model_name": _models(run)[0],
        "machine": machine_label(run.machine),
        "num_cells": len(run.cells),
        "sentence": run.outcome["sentence"],
    }


def _models(run: RunRecord) -> list[str]:
    return list(dict.fromkeys(str(cell.settings.get("model", "")) for cell in run.cells))


def _view(name: str, read: Callable[[], Sequence[Any]], comment: str) -> View:
    rows = read()
    kinds = type(rows[0]).__annotations__
    columns = {field: _sql_type(kinds[field]) for field in rows[0]._fields}
    return View(name, columns | {"origin": "VARCHAR"}, [(*row, REFERENCE) for row in rows], comment)


def _sql_type(kind: Any) -> str:
    """Return the DuckDB type of a field; one that may be None needs no other type, as all columns are nullable."""
    return next(name for python, name in _SQL_TYPES.items() if python in (kind, *getattr(kind, "__args__", ())))


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value)
