"""Finding runs, their cells, trials and tokens by a filter: rows for tables, a page at a time, figures from DuckDB."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Self

from engine.errors import ConfigError
from engine.history import conditions, figures, trend_points
from engine.history.choices import Choices, choices_of
from engine.history.conditions import CELL_MODEL, CELLS, RUNS, TEMPERATURE, TRIAL_FIGURES, TRIALS, Condition
from engine.history.filters import Filter
from engine.history.found_rows import Row, cell_rows, run_rows, trial_rows
from engine.history.marks import Kind
from engine.history.owned_file import Cursor, OwnedFile, fetch
from engine.runs import TrendPoint
from engine.samples import MAIN_METRICS, METRICS_BY_NAME
from engine.vocabulary import Vocabulary

EVERYTHING = Filter()
MOST_ROWS = 10_000

_RUN_ORDERS = {
    **{name: f"runs.{name}" for name in ("created_at", "name", "question", "status", "origin", "model_name")},
    "sentence": "runs.sentence",
    "best": f"list_position({list(MAIN_METRICS)}, best_metric), best",
}
_CELL_ORDERS = {
    **{name: f"runs.{name}" for name in ("created_at", "name", "question", "origin")},
    "label": "cells.label",
    "status": "cells.status",
    "model_name": CELL_MODEL,
    **{name: name for name in METRICS_BY_NAME},
}
_TRIAL_ORDERS = {
    **{name: f"trials.{name}" for name in ("created_at", "title", "model_name", "label")},
    "quantisation": "trials.model_quantisation",
    "temperature": TEMPERATURE,
    **TRIAL_FIGURES,
}


class _Table(NamedTuple):
    """What rows are found in, by which key, and which row of figures belongs to each."""

    source: str
    key: str
    told: str = ""


_RUNS = _Table(RUNS, "runs.id", "told.run_id = runs.id")
_CELLS = _Table(CELLS, "runs.id, cells.number", "told.run_id = runs.id AND told.cell = cells.number")
_TRIALS = _Table(TRIALS, "trials.id")


class Found(NamedTuple):
    """A page of rows, each with the same columns. total: how many there are on all pages.

    differing: the columns in which the rows of this page differ.
    """

    rows: list[Row]
    total: int
    differing: tuple[str, ...]

    @classmethod
    def of(cls, rows: Iterable[Row], total: int) -> Self:
        """Rows some of which may lack a column that others have: it is None there."""
        given = list(rows)
        names = dict.fromkeys(name for row in given for name in row)
        whole = [{name: row.get(name) for name in names} for row in given]
        differing = (name for name in names if any(row[name] != whole[0][name] for row in whole))
        return cls(whole, total, tuple(differing))

    @property
    def same(self) -> Row:
        """The columns in which all rows of this page agree, with their value."""
        row = self.rows[0] if self.rows else {}
        return {name: value for name, value in row.items() if name not in self.differing}


class Finder:
    """Reads the history by filters; what is deleted is never found. May be called from any thread.

    `runs`, `cells` and `trials` give `limit` rows, at most 10,000, from `offset` on, in the order of one column; rows
    without a value in it come last. They raise ConfigError for a column that gives no order, and numbers out of range.
    """

    def __init__(self, file: OwnedFile, vocabulary_of: Callable[[Cursor, str], Vocabulary]) -> None:
        self._file = file
        self._vocabulary_of = vocabulary_of

    def runs(
        self,
        wanted: Filter = EVERYTHING,
        *,
        limit: int = 200,
        offset: int = 0,
        order: str = "created_at",
        is_descending: bool = True,
    ) -> Found:
        """A row for each run. best: the median of its best cell by best_metric, None without samples.

        In the order of `best`, those of one metric stand together: tokens and sentences do not compare.
        """
        page = _Page.checked(limit, offset, order, is_descending, _RUN_ORDERS)
        with self._file.reading() as cursor:
            condition = conditions.of_runs(wanted, cursor)
            keys, total = page.keys(cursor, _RUNS, condition, figures.best_of_runs if order == "best" else None)
            return Found.of(run_rows(cursor, keys), total)

    def cells(
        self,
        wanted: Filter = EVERYTHING,
        *,
        limit: int = 200,
        offset: int = 0,
        order: str = "created_at",
        is_descending: bool = True,
    ) -> Found:
        """A row for each cell of the runs: its settings by name, and the median of each metric over counted samples."""
        page = _Page.checked(limit, offset, order, is_descending, _CELL_ORDERS)
        with self._file.reading() as cursor:
            condition = conditions.of_cells(wanted, cursor)
            told = partial(figures.by_cell, [order]) if order in METRICS_BY_NAME else None
            keys, total = page.keys(cursor, _CELLS, condition, told)
            return Found.of(cell_rows(cursor, keys), total)

    def trials(
        self,
        wanted: Filter = EVERYTHING,
        *,
        limit: int = 200,
        offset: int = 0,
        order: str = "created_at",
        is_descending: bool = True,
    ) -> Found:
        """A row for each trial. lowest_p: of a token it generated; slowest_s: the wait for one after the first."""
        page = _Page.checked(limit, offset, order, is_descending, _TRIAL_ORDERS)
        with self._file.reading() as cursor:
            keys, total = page.keys(cursor, _TRIALS, conditions.of_trials(wanted))
            return Found.of(trial_rows(cursor, keys), total)

    def unsure_tokens(self, wanted: Filter = EVERYTHING, limit: int = 50) -> list[Row]:
        """The generated tokens of these trials to which the model gave the lowest probability, the lowest first.

        Each with trial_id, title, position, text, p (before any sampler, None where it was not taken), elapsed_s.
        """
        return self._tokens(wanted, "logprob", limit)

    def slow_tokens(self, wanted: Filter = EVERYTHING, limit: int = 50) -> list[Row]:
        """The generated tokens of these trials that took longest, as `unsure_tokens`; a first token counts as none."""
        return self._tokens(wanted, "CASE WHEN position > 0 THEN -elapsed_s END", limit)

    def trend(self, run_id: str, cell: int, metric: str) -> list[TrendPoint]:
        """Every run of the configuration that this cell has, in the order of time, see `trend_points`."""
        with self._file.reading() as cursor:
            return trend_points.trend_points(cursor, run_id, cell, metric)

    def choices(self, kind: Kind) -> Choices:
        """What a filter of runs, or of trials, can choose from."""
        with self._file.reading() as cursor:
            return choices_of(cursor, kind)

    def _tokens(self, wanted: Filter, measure: str, limit: int) -> list[Row]:
        """The tokens of which `measure` is lowest."""
        _check_whole("limit", limit, 1)
        condition = conditions.of_trials(wanted)
        query = f"""
            SELECT trial_id, title, position, steps.id AS token, tokenizer, exp(logprob) AS p, elapsed_s
            FROM steps JOIN ({TRIALS}) ON trials.id = trial_id
            WHERE NOT is_prompt AND {measure} IS NOT NULL AND {condition}
            ORDER BY {measure}, trial_id, position LIMIT ?"""
        with self._file.reading() as cursor:
            rows = fetch(cursor.execute(query, [*condition.values, limit]))
            for row in rows:
                vocabulary = self._vocabulary_of(cursor, row.pop("tokenizer"))
                row |= {"trial_id": str(row["trial_id"]), "text": vocabulary.text(row.pop("token"))}
        return rows


class _Page(NamedTuple):
    """Which of what is found, by an expression that gives the order."""

    limit: int
    offset: int
    order: str
    direction: str

    @classmethod
    def checked(cls, limit: int, offset: int, order: str, is_descending: bool, orders: Mapping[str, str]) -> Self:
        _check_whole("limit", limit, 1)
        _check_whole("offset", offset, 0)
        if order not in orders:
            raise ConfigError(f"order = {order!r}: must be one of {', '.join(orders)}")
        return cls(limit, offset, orders[order], "DESC" if is_descending else "ASC")

    def keys(
        self, cursor: Cursor, table: _Table, condition: Condition, told: Callable[[str], str] | None = None
    ) -> tuple[list[Any], int]:
        """Keys of the rows of this page, and how many rows there are in all.

        told: a query for the figures that the order needs, of the samples for which a condition holds.
        """
        count = cursor.execute(f"SELECT count(*) FROM {table.source} WHERE {condition}", condition.values)
        (total,) = count.fetchone() or (0,)
        source, values, among = table.source, condition.values, ""
        if told is not None:
            among = f"WITH among AS (SELECT DISTINCT runs.id FROM {source} WHERE {condition}) "
            figures = told("run_id IN (SELECT id FROM among)")
            source, values = f"{source} LEFT JOIN ({figures}) AS told ON {table.told}", [*values, *values]
        found = cursor.execute(
            f"{among}SELECT {table.key} FROM {source} WHERE {condition} "
            f"ORDER BY {self.order} {self.direction} NULLS LAST, {table.key} LIMIT ? OFFSET ?",
            [*values, self.limit, self.offset],
        )
        return found.fetchall(), total


def _check_whole(name: str, value: int, low: int) -> None:
    high = MOST_ROWS if name == "limit" else 1 << 31
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} = {value!r}: must be a whole number from {low} to {high:,}")
