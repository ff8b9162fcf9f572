"""Form for the numbers of a job: documents, output per document, embeddings, and use of the machine."""

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
    "documents": Field("Documents", 0, 10**12, 10, "Number of documents"),
    "words_per_document": Field("Words per document", 0.0, 1e9, 500.0, "On average; ignored if tokens are set"),
    "tokens_per_word": Field("Tokens per word", 0.01, 100.0, 0.1, "The notes assume 1.5 for English"),
    "tokens_per_document": Field("Tokens per document", 0.0, 1e9, 500.0, "Empty: words × tokens per word"),
    "output_tokens": Field("Output tokens", 0.0, 1e9, 50.0, "Generated per document"),
    "embedding_sentences": Field("Sentences to embed", 0, 10**12, 1000, "In total"),
    "concurrency": Field("Concurrency", 0, 4096, 1, "Documents processed at the same time; empty: as measured"),
    "startup_s": Field("Start-up, s", 0.0, 1e7, 60.0, "Booting, copying and loading before the work starts; paid once"),
}
UNSET = {"tokens_per_document": "from words", "concurrency": "as measured"}
"""Placeholders of fields that are empty if their value is 0."""

GOALS = {
    "deadline_h": Field("Deadline, h", 0.0, 1e9, 1.0, "Selects the cheapest machine that is in time; empty: none"),
    "budget_usd": Field("Budget, $", 0.0, 1e12, 1.0, "Selects the fastest machine within the budget; empty: none"),
}


def goals(values: Mapping[str, Any]) -> None:
    """Draw deadline and budget, either of which may be empty; call inside a row."""
    for name, field in GOALS.items():
        _number(name, field, values[name], value=None, placeholder="none", width=168)


def show(values: Mapping[str, Any]) -> None:
    """Draw all numbers of the job."""
    with st.grid(5, min_column_width=150, gap="small"):
        for name, field in FIELDS.items():
            if name in UNSET:
                _number(name, field, values[name] or None, value=None, placeholder=UNSET[name])
            else:
                _number(name, field, values[name])
        st.slider(
            "Utilisation", 0.01, 1.0, step=0.01, format="percent", help="Share of the paid time spent on work",
            **address.bound("utilisation", PREFIX + "utilisation", _within(values["utilisation"], 0.01, 1.0)),
        )  # fmt: skip


def _number(name: str, field: Field, wanted: Any, **more: Any) -> None:
    shown = None if wanted is None else _within(wanted, field.low, field.high)
    st.number_input(
        field.label, field.low, field.high, step=field.step, help=field.help, format=_format(field), **more,
        **address.bound(name, PREFIX + name, shown),
    )  # fmt: skip


def _within(value: Any, low: Any, high: Any) -> Any:
    """Clamp a value to the widget's range; the engine reports values that are out of range."""
    return min(max(value, low), high)


def _format(field: Field) -> str:
    return "%d" if isinstance(field.step, int) else "%.2f" if field.step < 1 else "%.10g"
