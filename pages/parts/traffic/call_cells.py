"""Cells of a call in the table: short texts with units, on one line, without control and direction characters."""

from typing import Any, Literal, NamedTuple

from engine.api.openai.traffic import CallRow, Figures
from engine.errors import sentence
from engine.units import exact, percent, quantity, significant
from pages.parts.labels import one_line
from pages.parts.plain import visible
from pages.parts.traffic.call_filter import LIVE
from pages.parts.units import local_time

LONGEST_CELL = 60
LONGEST_ERROR = 300
SMALLEST_PERCENTS = 1e-4


class Column(NamedTuple):
    """Column of the table. room: class of the widths that show it (calls.css); "extra" is left out at medium widths."""

    heading: str
    help: str
    kind: Literal["text", "number", "code"]
    room: Literal["any", "few", "some", "more", "much", "extra"]


COLUMNS = (
    Column("when", "", "text", "few"),
    Column("client", "the program, as it names itself", "text", "any"),
    Column("endpoint", "", "text", "more"),
    Column("model", "", "text", "much"),
    Column("state", "", "text", "any"),
    Column("tokens", "generated tokens", "number", "any"),
    Column("speed", "tokens of all its answers per second, from the first token to the last", "number", "few"),
    Column("first token", "from the request to the first token", "number", "some"),
    Column("took", "from the request to its end", "number", "extra"),
    Column("cached", "share of the prompt's tokens that were taken from the cache", "number", "much"),
    Column("surprise", "mean of -log2 p over the generated tokens", "number", "more"),
    Column("least expected", "the lowest probability of a generated token, and that token", "code", "more"),
)
"""What a narrow table leaves out is in the sentence of the call, or in the strip of its only answer."""


def cells(row: CallRow) -> dict[str, Any]:
    """Return a call as the table draws it, ready for JSON."""
    figures = row.figures
    return {
        "number": row.number,
        "state": row.state,
        "error": one_line(sentence(row.error), LONGEST_ERROR),
        "client": row.client,
        "cells": [
            f"{local_time(row.at):%H:%M:%S}",
            _short(row.client),
            _short(row.endpoint.removeprefix("/v1/")),
            _short("" if row.state == "failed" and not row.trials else row.model),
            row.state,
            f"{figures.num_generated:,}" if figures.num_generated else "",
            _of(figures.per_s, "tok/s"),
            _of(figures.ttft_s, "s"),
            "" if row.state in LIVE else quantity(row.elapsed_s, "s"),
            percent(figures.num_cached / figures.num_prompt) if figures.num_prompt and row.trials else "",
            _of(figures.surprise_bits, "bits"),
            unsure(figures),
        ],
    }


def _short(text: str) -> str:
    return visible(text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…")


def _of(value: float | None, unit: str) -> str:
    return "" if value is None else quantity(value, unit)


def unsure(figures: Figures) -> str:
    """Return the least expected token behind its probability; empty where there is none."""
    if figures.unsure_p is None:
        return ""
    percents = 100 * figures.unsure_p
    shown = significant(percents) if percents >= SMALLEST_PERCENTS else f"< {exact(SMALLEST_PERCENTS)}"
    return f"{shown} %  {_short(figures.unsure.replace(' ', '␣'))}"
