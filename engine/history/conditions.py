"""Filter conditions: a Filter as the WHERE clause of a query, with the values of its placeholders."""

from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from engine.history.filters import Filter, Range
from engine.history.read_cursor import ReadCursor
from engine.runs import quantisation_in

RUNS = "runs LEFT JOIN marks ON marks.kind = 'run' AND marks.id = runs.id"
CELLS = "cells JOIN runs ON runs.id = cells.run_id LEFT JOIN marks ON marks.kind = 'run' AND marks.id = runs.id"
TRIALS = "trials LEFT JOIN marks ON marks.kind = 'trial' AND marks.id = trials.id"

MODEL_NAMES = "string_split(runs.model_name, ', ')"
CELL_MODEL = "coalesce(parse_filename(cells.settings ->> '/model', true), runs.model_name)"

_RUN_TEXT = "concat_ws(chr(10), runs.name, runs.sentence, marks.note, array_to_string(marks.tags, chr(10)))"
_TRIAL_TEXT = """concat_ws(chr(10), trials.prompt, trials.text, marks.note, array_to_string(marks.tags, chr(10)),
    CASE WHEN trials.messages <> '[]' THEN array_to_string(trials.messages ->> '$[*].content', chr(10)) END)"""

TEMPERATURE = "TRY_CAST(trials.sampling ->> '/temperature' AS DOUBLE)"
NUM_TOKENS = "(SELECT count(*) FROM steps WHERE trial_id = trials.id AND NOT is_prompt)"
"""Number of tokens of a trial's answer, with those of the trial that it continues, which `num_generated` leaves out."""

TRIAL_FIGURES = {
    "seed": "trials.seed",
    "num_prompt": "trials.num_prompt",
    "num_cached": "trials.num_cached",
    "num_generated": NUM_TOKENS,
    "threads": "trials.threads",
    "ttft_s": "trials.ttft_s",
    "prefill_per_s": "(trials.num_prompt - trials.num_cached) / nullif(trials.prefill_s, 0)",
    "decode_per_s": (
        "CASE WHEN trials.num_generated > 1 THEN (trials.num_generated - 1) / nullif(trials.decode_s, 0) END"
    ),
    "mean_surprise_bits": "trials.mean_surprise_bits",
    "lowest_p": "(SELECT exp(min(logprob)) FROM steps WHERE trial_id = trials.id AND NOT is_prompt)",
    "slowest_s": "(SELECT max(elapsed_s) FROM steps WHERE trial_id = trials.id AND NOT is_prompt AND position > 0)",
}
"""Figures of a trial by name, as SQL expressions. The rates are those of engine.results.Timings; lowest_p is the lowest
probability that the model gave to a generated token, slowest_s the longest time for a token after the first."""


class Condition:
    """SQL condition: parts joined by AND, and the values of their placeholders in order."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._parts: list[str] = []

    def __str__(self) -> str:
        return " AND ".join(self._parts)

    def add(self, part: str, *values: Any) -> None:
        """Add a part that must hold too."""
        self._parts.append(part)
        self.values += values

    def one_of(self, column: str, allowed: Collection[str]) -> None:
        """Require the column to be one of `allowed`; no condition where that is empty."""
        if allowed:
            self.add(f"list_contains(?::VARCHAR[], {column})", list(allowed))

    def within(self, number: str, ends: Range, *values: Any) -> None:
        """Require a number, given as an expression with these values, to be between the ends, both included."""
        for comparison, end in zip((">=", "<="), ends, strict=True):
            if end is not None:
                self.add(f"{number} {comparison} ?", *values, end)


def of_runs(wanted: Filter, cursor: ReadCursor) -> Condition:
    """Return the condition for RUNS: on the run itself, and on one of its configurations for the ranges."""
    condition = _of_runs(wanted)
    if wanted.models:
        condition.add(f"list_has_any({MODEL_NAMES}, ?::VARCHAR[])", list(wanted.models))
    if wanted.quantisations:
        condition.add(f"list_has_any({MODEL_NAMES}, ?::VARCHAR[])", _names_of(wanted.quantisations, cursor))
    if wanted.ranges:
        cell = Condition()
        _settings(cell, wanted.ranges)
        condition.add(f"runs.id IN (SELECT run_id FROM cells WHERE {cell})", *cell.values)
    return condition


def of_cells(wanted: Filter, cursor: ReadCursor) -> Condition:
    """Return the condition for CELLS: on the configuration itself, and on its run."""
    condition = _of_runs(wanted)
    condition.one_of(CELL_MODEL, wanted.models)
    if wanted.quantisations:
        condition.add(f"list_contains(?::VARCHAR[], {CELL_MODEL})", _names_of(wanted.quantisations, cursor))
    _settings(condition, wanted.ranges)
    return condition


def of_trials(wanted: Filter) -> Condition:
    """Return the condition for TRIALS."""
    condition = _of_all(wanted, "trials", _TRIAL_TEXT)
    condition.one_of("trials.model_name", wanted.models)
    condition.one_of("trials.model_quantisation", wanted.quantisations)
    condition.one_of("trials.label", wanted.origins)
    condition.one_of("trials.finish_reason", wanted.statuses)
    for name, ends in wanted.ranges.items():
        if name in TRIAL_FIGURES:
            condition.within(TRIAL_FIGURES[name], ends)
        else:
            condition.within("TRY_CAST(trials.sampling ->> ?::VARCHAR AS DOUBLE)", ends, pointer(name))
    return condition


def pointer(name: str) -> str:
    """Return the JSON pointer (RFC 6901) to the member of that name."""
    return "/" + name.replace("~", "~0").replace("/", "~1")


def model_names(cursor: ReadCursor) -> list[str]:
    """Return the names of all models in runs, in alphabetical order."""
    rows = cursor.execute(
        f"SELECT DISTINCT unnest({MODEL_NAMES}) AS name FROM runs WHERE deleted_at IS NULL ORDER BY name"
    ).fetchall()
    return [name for (name,) in rows if name]


def _names_of(quantisations: Collection[str], cursor: ReadCursor) -> list[str]:
    return [name for name in model_names(cursor) if quantisation_in(name) in quantisations]


def _of_runs(wanted: Filter) -> Condition:
    condition = _of_all(wanted, "runs", _RUN_TEXT)
    condition.one_of("runs.machine_hash", wanted.machines)
    condition.one_of("runs.question", wanted.questions)
    condition.one_of("runs.origin", wanted.origins)
    condition.one_of("runs.status", wanted.statuses)
    return condition


def _of_all(wanted: Filter, table: str, text: str) -> Condition:
    condition = Condition()
    condition.add(f"{table}.deleted_at IS NULL")
    if wanted.days:
        condition.add(f"{table}.created_at >= ?", _midnight(date.today() - timedelta(days=wanted.days - 1)))
    if wanted.since:
        condition.add(f"{table}.created_at >= ?", _midnight(wanted.since))
    if wanted.until:
        condition.add(f"{table}.created_at < ?", _midnight(wanted.until + timedelta(days=1)))
    if wanted.is_starred:
        condition.add("marks.is_starred")
    if wanted.only_archived:
        condition.add("marks.is_archived")
    elif not wanted.has_archived:
        condition.add("marks.is_archived IS NOT TRUE")
    if wanted.tags:
        condition.add("list_has_all(marks.tags, ?::VARCHAR[])", list(wanted.tags))
    for word in wanted.text.split():
        condition.add(f"contains(lower({text}), lower(?))", word)
    return condition


def _settings(condition: Condition, ranges: Mapping[str, Range]) -> None:
    for name, ends in ranges.items():
        condition.within("TRY_CAST(cells.settings ->> ?::VARCHAR AS DOUBLE)", ends, pointer(name))


def _midnight(day: date) -> datetime:
    """Return the local start of the day, in UTC."""
    return datetime.combine(day, time.min).astimezone(UTC).replace(tzinfo=None)
