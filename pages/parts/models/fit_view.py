"""Memory fit of a model before loading: its parts over context lengths and numbers of sequences."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import streamlit as st

from engine.errors import EngineError
from engine.models import ModelFile, embedded_model
from engine.models.details import readable
from engine.models.fit import (
    SEQUENCES,
    FitRow,
    MachineMemory,
    cache_arithmetic,
    contexts_for,
    fit_row,
    grid,
    longest_context,
    machine_memory,
    notes_example,
)
from engine.specs import KV_TYPES, PoolSpec
from engine.units import NOT_MEASURED, counted, quantity
from engine.workbench import Workbench
from engine.workbench.model_manager import default_spec
from pages.parts import address, number_columns
from pages.parts.benchmark.charts import draw
from pages.parts.labels import distinct
from pages.parts.models import fit_charts, place
from pages.parts.notice import notice
from pages.parts.plain import plain

EXAMPLE_LABEL = "Example from the notes: 540 B parameters"
MOST_INSTANCES = 64
HELPS = {
    "context": "tokens per sequence",
    "KV cache": "keys and values of every layer, for all tokens of all sequences",
    "buffers": "llama.cpp's compute buffers and the logits",
    "processes": "the interpreter and libraries of each instance",
    "total": "estimated before loading",
}
ABOUT_WINDOWS = (
    "Some layers of this model attend only to a sliding window. The pool stores their whole context so that prefixes "
    "can be reused; the column “KV, windows only” shows what the windows alone need."
)


class Asked(NamedTuple):
    """A model, and the planned pool: `sequences` of `n_ctx` tokens each, over all instances."""

    model: ModelFile
    spec: PoolSpec
    n_ctx: int
    sequences: int
    all_sequences: tuple[int, ...]


def show(bench: Workbench) -> None:
    """Draw the view for the model in the URL, else the one that is loaded."""
    path = place.model() or readable(_usual(bench))
    try:
        asked = _asked(path, _choose(path))
        _shown(asked, is_example=path == place.EXAMPLE)
    except EngineError as error:
        notice(error)


def _usual(bench: Workbench) -> Path:
    loaded = bench.model.path
    return loaded if loaded is not None and loaded.exists() else embedded_model()


def _choose(path: str) -> ModelFile:
    """Draw the list of models and return the selected one. Raises EngineError if it cannot be used."""
    labels = {
        readable(entry.file.path): f"{entry.name} · {entry.file.quantisation}"
        for entry in place.library()
        if isinstance(entry.file, ModelFile)
    }
    example = notes_example().model if path == place.EXAMPLE else None
    found = example or place.find(path)
    if example is None:
        labels.setdefault(path, f"{readable(found.name)} · {found.quantisation}")
    shown = distinct({**labels, place.EXAMPLE: EXAMPLE_LABEL})
    st.selectbox("Model", list(shown), format_func=shown.__getitem__, **address.bound("model", "fit_model", path))
    return found


def _asked(path: str, model: ModelFile) -> Asked:
    """Return the values of the controls, which are bound to the URL. Raises ConfigError for an impossible pool."""
    is_example = path == place.EXAMPLE
    usual = PoolSpec(share_weights=True, n_ctx=model.n_ctx_train) if is_example else default_spec(model)
    example_sequences = (*SEQUENCES, 128, 256, 512) if is_example else SEQUENCES
    lengths = contexts_for(model)
    with st.grid(5, min_column_width=120, gap="small"):
        sequences = _select("sequences", "Sequences", example_sequences, 512 if is_example else usual.parallel)
        n_ctx = _select("n_ctx", "Context", lengths, min(lengths, key=lambda each: abs(each - usual.n_ctx)))
        instances = _select("instances", "Instances", tuple(range(1, MOST_INSTANCES + 1)), 1)
        type_k = _select("type_k", "Keys", KV_TYPES, usual.type_k)
        type_v = _select("type_v", "Values", KV_TYPES, usual.type_v)
    shares = st.toggle(
        "Share weights", help="Instances share the file's pages; otherwise each repacks the weights for this processor",
        **address.bound("shared", "fit_shared", st.query_params.get("shared", str(usual.share_weights)) == "True"),
    )  # fmt: skip
    spec = replace(usual, instances=instances, type_k=type_k, type_v=type_v, share_weights=shares)
    return Asked(model, spec, n_ctx, sequences, example_sequences)


def _select(name: str, label: str, offered: Sequence[Any], usual: Any) -> Any:
    """Draw a choice bound to the URL; a value in the URL that is not offered is ignored."""
    by_text = {str(value): value for value in offered}
    value = by_text.get(st.query_params.get(name, ""), usual)
    return st.selectbox(
        label, list(offered), format_func=lambda one: f"{one:,}" if isinstance(one, int) else one,
        **address.bound(name, f"fit_{name}", value),
    )  # fmt: skip


def _shown(asked: Asked, *, is_example: bool) -> None:
    """Draw the answer as a sentence, the two charts and the table."""
    row = fit_row(asked.model, asked.n_ctx, asked.sequences, asked.spec)
    longest = longest_context(asked.model, asked.sequences, asked.spec)
    st.subheader(plain(sentence(row, longest)), anchor=False)
    told = notes_example().says if is_example else cache_arithmetic(asked.model, row, asked.spec)
    st.caption(plain(f"{told}."))
    memory = machine_memory()
    rows = grid(asked.model, (), asked.all_sequences, asked.spec)
    by_context = [one for one in rows if one.sequences == asked.sequences]
    by_sequences = [one for one in rows if one.n_ctx == asked.n_ctx]
    columns = st.grid(2, min_column_width=420, gap="large")
    with columns.cell():
        draw(fit_charts.over_context(by_context, memory), "fit_contexts")
    with columns.cell():
        draw(fit_charts.over_sequences(by_sequences, memory), "fit_sequences_chart")
    st.caption(plain(_memory(memory)))
    _table(rows)
    if any(one.kv_windowed < one.kv for one in rows):
        st.caption(ABOUT_WINDOWS)


def sentence(row: FitRow, longest: int) -> str:
    """Return whether it fits, and the longest context that does."""
    ending = "" if row.sequences > 1 else "s"
    takes = f"{counted(row.sequences, 'sequence')} of {row.n_ctx:,} tokens take{ending} {quantity(row.total, 'B')}"
    if row.fits:
        more = f", as would up to {longest:,} tokens each" if longest > row.n_ctx else ""
        return f"{takes} and fit{ending} here{more}."
    if not longest:
        return f"{takes}, too much here at any context length."
    return f"{takes}, too much here; up to {longest:,} tokens each would fit."


def _memory(memory: MachineMemory) -> str:
    """Return the machine's memory, in words."""
    limit = "" if memory.limit is None else f", {quantity(memory.limit, 'B')} of it allowed by the cgroup"
    return f"Of {quantity(memory.total, 'B')} of memory{limit}, {quantity(memory.available, 'B')} is free now."


def _table(rows: Sequence[FitRow]) -> None:
    table = frame(rows)
    st.dataframe(
        table, hide_index=True, key="fit_table", placeholder=NOT_MEASURED, alt="Memory by sequences and context",
        column_config={
            **number_columns.formats(table, HELPS),
            "context": st.column_config.NumberColumn(format="localized", help=HELPS["context"]),
        },
    )  # fmt: skip


def frame(rows: Sequence[FitRow]) -> pd.DataFrame:
    """Return one row per pool; bytes in the most readable unit."""
    parts: Mapping[str, list[int]] = {
        "weights": [row.weights for row in rows],
        "KV cache": [row.kv for row in rows],
        "buffers": [row.buffers for row in rows],
        "processes": [row.process for row in rows],
        "total": [row.total for row in rows],
    }
    if any(row.kv_windowed < row.kv for row in rows):
        parts = {**parts, "KV, windows only": [row.kv_windowed for row in rows]}
    figures = [number_columns.scaled(label, "B", values) for label, values in parts.items()]
    return pd.DataFrame(
        {
            "sequences": [row.sequences for row in rows],
            "context": [row.n_ctx for row in rows],
            "fits": ["fits" if row.fits else "too large" for row in rows],
            **{name: values for part in figures for name, values in part.items()},
        }
    )
