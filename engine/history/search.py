"""Search for runs, configurations, trials and tokens by a filter: table rows, page by page, figures from DuckDB."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Self

from engine.errors import ConfigError
from engine.history import conditions, figures, trend_points
from engine.history.choices import Choices, KnownRanges, choices_of
from engine.history.conditions import CELL_MODEL, CELLS, RUNS, TEMPERATURE, TRIAL_FIGURES, TRIALS, Condition
from engine.history.database_writer import DatabaseWriter, fetch
from engine.history.filters import Filter
from engine.history.found_rows import Row, cell_rows, run_rows, trial_rows
from engine.history.marks import Kind
from engine.history.read_cursor import ReadCursor
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
    """SQL of a searchable table: the source, the key of its rows, and the join condition with their figures."""

    source: str
    key: str
    joins_on: str = ""


_RUNS = _Table(RUNS, "runs.id", "figures.run_id = runs.id")
_CELLS = _Table(CELLS, "runs.id, cells.number", "figures.run_id = runs.id AND figures.cell = cells.number")
_TRIALS = _Table(TRIALS, "trials.id")


class Found(NamedTuple):
    """Page of search results; all rows have the same columns. total: number of rows on all pages.

    differing: the columns in which the rows of this page differ.
    """

    rows: list[Row]
    total: int
    differing: tuple[str, ...]

    @classmethod
    def of(cls, rows: Iterable[Row], total: int) -> Self:
        """Create a page from rows; a column that only some of them have is None in the others."""
        given = list(rows)
        names = dict.fromkeys(name for row in given for name in row)
        whole = [{name: row.get(name) for name in names} for row in given]
        differing = (name for name in names if any(row[name] != whole[0][name] for row in whole))
        return cls(whole, total, tuple(differing))

    @property
    def same(self) -> Row:
        """The columns that have the same value in all rows of this page, with that value."""
        row = self.rows[0] if self.rows else {}
        return {name: value for name, value in row.items() if name not in self.differing}


class Finder:
    """Filtered search in the history, without deleted entries. May be called from any thread.

    `runs`, `cells` and `trials` return up to `limit` rows, at most 10,000, from `offset` on, sorted by one column; rows
    without a value in it come last. They raise ConfigError for a column that cannot be sorted by, and for numbers out
    of range.
    """

    def __init__(self, file: DatabaseWriter, vocabulary_of: Callable[[ReadCursor, str], Vocabulary]) -> None:
        self._file = file
        self._vocabulary_of = vocabulary_of
        self._known_ranges: KnownRanges = {}

    def runs(
        self,
        wanted: Filter = EVERYTHING,
        *,
        limit: int = 200,
        offset: int = 0,
        order: str = "created_at",
        is_descending: bool = True,
    ) -> Found:
        """Return a row per run. best: the median of its best configuration by best_metric, None without samples.

        Sorted by `best`, runs are grouped by metric: tokens and sentences cannot be compared.
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
        """Return a row per configuration: its settings by name, and the median of each metric over counted samples."""
        page = _Page.checked(limit, offset, order, is_descending, _CELL_ORDERS)
        with self._file.reading() as cursor:
            condition = conditions.of_cells(wanted, cursor)
            query = partial(figures.by_cell, [order]) if order in METRICS_BY_NAME else None
            keys, total = page.keys(cursor, _CELLS, condition, query)
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
        """Return a row per trial.

        lowest_p: lowest probability of a generated token; slowest_s: longest time for a token after the first.
        """
        page = _Page.checked(limit, offset, order, is_descending, _TRIAL_ORDERS)
        with self._file.reading() as cursor:
            keys, total = page.keys(cursor, _TRIALS, conditions.of_trials(wanted))
            return Found.of(trial_rows(cursor, keys), total)

    def unsure_tokens(self, wanted: Filter = EVERYTHING, limit: int = 50) -> list[Row]:
        """Return the generated tokens of these trials with the lowest probabilities, the lowest first.

        Each row has trial_id, title, position, text, p (before any sampler, None where not recorded), elapsed_s.
        """
        return self._tokens(wanted, "logprob", limit)

    def slow_tokens(self, wanted: Filter = EVERYTHING, limit: int = 50) -> list[Row]:
        """Return the slowest generated tokens of these trials, in rows as `unsure_tokens`, without first tokens."""
        return self._tokens(wanted, "CASE WHEN position > 0 THEN -elapsed_s END", limit)

    def trend(self, run_id: str, cell: int, metric: str) -> list[TrendPoint]:
        """Return a point for every run that measured this configuration, in order of time; see `trend_points`."""
        with self._file.reading() as cursor:
            return trend_points.trend_points(cursor, run_id, cell, metric)

    def models(self) -> list[str]:
        """Return the names of all models in runs, in alphabetical order."""
        with self._file.reading() as cursor:
            return conditions.model_names(cursor)

    def choices(self, kind: Kind) -> Choices:
        """Return the values that a filter of runs, or of trials, can choose from."""
        with self._file.reading() as cursor:
            return choices_of(cursor, kind, self._known_ranges)

    def _tokens(self, wanted: Filter, measure: str, limit: int) -> list[Row]:
        """Return the generated tokens with the lowest values of the SQL expression `measure`."""
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
    """Page of the search results: limit, offset, and the SQL expression and direction of the order."""

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
        self, cursor: ReadCursor, table: _Table, condition: Condition, figures_query: Callable[[str], str] | None = None
    ) -> tuple[list[Any], int]:
        """Return the keys of this page's rows, and the total number of rows.

        figures_query: builds the query for the figures to sort by, from a condition on samples.
        """
        count = cursor.execute(f"SELECT count(*) FROM {table.source} WHERE {condition}", condition.values)
        (total,) = count.fetchone() or (0,)
        source, values, among = table.source, condition.values, ""
        if figures_query is not None:
            among = f"WITH among AS (SELECT DISTINCT runs.id FROM {source} WHERE {condition}) "
            figures = figures_query("run_id IN (SELECT id FROM among)")
            source, values = f"{source} LEFT JOIN ({figures}) AS figures ON {table.joins_on}", [*values, *values]
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
