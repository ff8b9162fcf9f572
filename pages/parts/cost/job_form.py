"""Form for the numbers of a job: documents, words and output at once, the rest with the deadline and the budget."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import streamlit as st

from pages.parts import address

PREFIX = "cost_"


class Field(NamedTuple):
    """One number of the job: its range on the screen, and its help text."""

    label: str
    low: float
    high: float
    step: float
    help: str


FIELDS = {
    "documents": Field("Documents", 0, 10**12, 10, "Number of documents."),
    "words_per_document": Field("Words per document", 0.0, 1e9, 500.0, "On average; ignored if tokens are set."),
    "tokens_per_document": Field("Tokens per document", 0.0, 1e9, 500.0, "Empty: words × tokens per word."),
    "output_tokens": Field("Output tokens per document", 0.0, 1e9, 50.0, "Length of the answer to each document."),
    "tokens_per_word": Field("Tokens per word", 0.01, 100.0, 0.1, "About 1.5 for English."),
    "embedding_sentences": Field("Sentences to embed", 0, 10**12, 1000, "In total."),
    "concurrency": Field("Concurrency", 0, 4096, 1, "Documents processed at the same time; empty: as measured."),
    "startup_s": Field("Start-up, s", 0.0, 1e7, 60.0, "Booting, copying and loading before the work, paid once."),
}
FIRST = ("documents", "words_per_document", "output_tokens")
REST = tuple(name for name in FIELDS if name not in FIRST)
UNSET = {"tokens_per_document": "from words", "concurrency": "as measured"}
"""Placeholders of fields that are empty if their value is 0."""

GOALS = {
    "deadline_h": Field("Deadline, h", 0.0, 1e9, 1.0, "Selects the cheapest machine that is in time."),
    "budget_usd": Field("Budget, $", 0.0, 1e12, 1.0, "Selects the fastest machine within the budget."),
}
LENGTHS = ("words_per_document", "tokens_per_document")


def first(values: Mapping[str, Any]) -> None:
    """Draw the numbers that describe a job, with the length of a document in tokens if it is set; call inside a row."""
    for name in FIRST:
        _number(_shown(name, values), values, width=190)


def rest(values: Mapping[str, Any]) -> None:
    """Draw the other numbers of the job, and deadline and budget, either of which may be empty."""
    with st.grid(4, min_column_width=170, gap="small"):
        for name in REST:
            _number(_shown(name, values), values)
        for name, field in GOALS.items():
            _input(name, field, values[name], placeholder="none")
        st.slider(
            "Utilisation", 0.01, 1.0, step=0.01, format="percent", help="Share of the paid time spent on work.",
            **address.bound("utilisation", PREFIX + "utilisation", _within(values["utilisation"], 0.01, 1.0)),
        )  # fmt: skip


def _shown(name: str, values: Mapping[str, Any]) -> str:
    """Return the field that stands in the place of `name`: the two lengths of a document change places."""
    return _other(name) if values["tokens_per_document"] and name in LENGTHS else name


def _other(name: str) -> str:
    return LENGTHS[1 - LENGTHS.index(name)]


def _number(name: str, values: Mapping[str, Any], **more: Any) -> None:
    if name in UNSET:
        _input(name, FIELDS[name], values[name] or None, placeholder=UNSET[name], **more)
    else:
        _input(name, FIELDS[name], values[name], **more)


def _input(name: str, field: Field, wanted: Any, **more: Any) -> None:
    shown = None if wanted is None else _within(wanted, field.low, field.high)
    empty: dict[str, Any] = {"value": None} if "placeholder" in more else {}
    st.number_input(
        field.label, field.low, field.high, step=field.step, help=field.help, format=_format(field), **empty, **more,
        **address.bound(name, PREFIX + name, shown),
    )  # fmt: skip


def _within(value: Any, low: Any, high: Any) -> Any:
    """Clamp a value to the widget's range; the engine reports values that are out of range."""
    return min(max(value, low), high)


def _format(field: Field) -> str:
    return "%d" if isinstance(field.step, int) else "%.2f" if field.step < 1 else "%.10g"
