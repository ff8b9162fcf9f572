"""Cells of a call in the table: short texts with units, on one line, without control and direction characters."""

from typing import Any

from engine.api.openai.traffic import CallRow, Figures
from engine.units import exact, percent, quantity, significant
from pages.parts.labels import one_line
from pages.parts.plain import visible
from pages.parts.units import local_time

LONGEST_CELL = 60
LONGEST_ERROR = 300
SMALLEST_PERCENTS = 1e-4
COLUMNS = (
    ("when", "", False),
    ("client", "the program, as it names itself", False),
    ("endpoint", "", False),
    ("model", "", False),
    ("state", "", False),
    ("tokens", "generated tokens", True),
    ("speed", "decode rate of its answers together", True),
    ("first token", "from the request to the first token", True),
    ("cached", "share of the prompt's tokens that were taken from the cache", True),
    ("surprise", "mean of -log2 p over the generated tokens", True),
    ("least expected", "the lowest probability of a generated token, and that token", False),
)
"""Heading, help, and whether it is a number."""


def cells(row: CallRow) -> dict[str, Any]:
    """Return a call as the table draws it, ready for JSON."""
    figures = row.figures
    return {
        "number": row.number,
        "state": row.state,
        "error": one_line(row.error, LONGEST_ERROR),
        "client": row.client,
        "cells": [
            f"{local_time(row.at):%H:%M:%S}",
            _short(row.client),
            _short(row.endpoint.removeprefix("/v1/")),
            _short(row.model),
            row.state,
            f"{figures.num_generated:,}" if figures.num_generated else "",
            _of(figures.per_s, "tok/s"),
            _of(figures.ttft_s, "s"),
            percent(figures.num_cached / figures.num_prompt) if figures.num_prompt and row.trials else "",
            _of(figures.surprise_bits, "bits"),
            _unsure(figures),
        ],
    }


def _short(text: str) -> str:
    return visible(text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…")


def _of(value: float | None, unit: str) -> str:
    return "" if value is None else quantity(value, unit)


def _unsure(figures: Figures) -> str:
    if figures.unsure_p is None:
        return ""
    percents = 100 * figures.unsure_p
    shown = significant(percents) if percents >= SMALLEST_PERCENTS else f"< {exact(SMALLEST_PERCENTS)}"
    return f"{shown} %  {_short(figures.unsure.replace(' ', '␣'))}"
