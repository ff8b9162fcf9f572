"""Backend selection: each backend with its speed on this machine and its loss of quality, before it is used."""

import math
from datetime import datetime
from functools import partial

import streamlit as st

from engine.bench.planning.engines import is_external, known_engines, label_of
from engine.embedding.backends import KINDS, usable
from engine.embedding.choice import (
    LOSSLESS,
    NOT_YET,
    BackendSpeed,
    Measurement,
    backend_table,
    chosen_backend,
    kept_measurement,
)
from engine.embedding.models import EmbeddingModel, find_model
from engine.embedding.specs import AUTO
from engine.errors import EngineError
from engine.protocol import EXTERNAL
from engine.units import NOT_MEASURED, counted
from engine.workbench import Workbench
from pages.parts import task_progress
from pages.parts.address import bound
from pages.parts.embeddings import asked
from pages.parts.notice import attempt, notice
from pages.parts.plain import plain
from pages.parts.units import local_time

WIDTH = 780
REFUSED = "embed_refused"
OF_ENGINE = "The engine embeds with its own model: the one that it was added with, or name another one of it."
ABOUT = {kind.name: kind.about for kind in KINDS}
COLUMNS = {
    "backend": st.column_config.TextColumn("backend", width=110),
    "texts_per_s": st.column_config.NumberColumn(
        "texts/s", format="%,.1f", width=65, help="Of 10 to 250 tokens each, by one worker on all cores"
    ),
    "speedup": st.column_config.NumberColumn(
        "× torch", format="%.2f", width=65, help="Speed over PyTorch in float32 in the same minutes"
    ),
    "worst": st.column_config.NumberColumn(
        "worst cosine", format="%.5f", width=90, help="Of all texts, to the vector of float32; 1: the same direction"
    ),
    "mean": st.column_config.NumberColumn("mean cosine", format="%.5f", width=90, help="To the vectors of float32"),
    "ranks": st.column_config.NumberColumn(
        "ranks", format="%.4f", width=65,
        help="Spearman's correlation of the similarities of all pairs with those of float32; 1: the same order",
    ),
    "memory": st.column_config.NumberColumn("MB", format="%d", width=60, help="Of all its processes (PSS)"),
    "note": st.column_config.TextColumn("note", width=None, help="What it is, or why there are no figures"),
}  # fmt: skip


def choose(bench: Workbench, given: str) -> str:
    """Return the backend in the URL and draw its selector, for the model `given`."""
    try:
        model = find_model(given)
    except EngineError:
        model = None  # its error is shown where its vectors would be
    engines = [EXTERNAL + one.name for one in known_engines()]
    options = (AUTO, *(usable(model) if model else ()), *engines)
    backend = asked.choice("backend", options)
    actual = chosen_backend(model) if model and backend == AUTO else label_of(backend)
    with st.popover(plain(actual), icon=":material/speed:", key="embed_backend_choice", width="content"):
        st.selectbox(
            "Computed by", options, **bound("backend", "embed_backend", backend), format_func=label_of,
            help=f"auto: the fastest below whose every vector has a cosine of at least {LOSSLESS} to that of float32; "
            "external: an engine of the model bar, by its /v1/embeddings",
        )  # fmt: skip
        if is_external(backend):
            st.caption(OF_ENGINE)
        elif model:
            measured = kept_measurement(model)
            _table(model, measured)
            st.caption(_said(model, measured))
            _measuring(bench, given, is_measured=measured is not None)
    return backend


def _table(model: EmbeddingModel, measured: Measurement | None) -> None:
    found = backend_table(model, measured)
    rows = [_row(one) for one in found]
    order = ("backend", "note") if measured is None else [*COLUMNS][: None if any(one.reason for one in found) else -1]
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    st.dataframe(
        columns, hide_index=True, key="embed_backends", height="content", width=WIDTH, column_config=COLUMNS,
        column_order=order, placeholder=NOT_MEASURED,
        alt="Speed and agreement of each backend",
    )  # fmt: skip


def _row(found: BackendSpeed) -> dict[str, float | str | None]:
    near = found.agreement
    figures = {
        "texts_per_s": found.texts_per_s,
        "speedup": found.speedup,
        "worst": near.worst_cosine,
        "mean": near.mean_cosine,
        "ranks": near.rank_correlation,
        "memory": found.memory_bytes / 1e6,
    }
    shown = {name: value if math.isfinite(value) else None for name, value in figures.items()}
    return {
        "backend": found.name,
        **shown,
        "note": ABOUT[found.name] if found.reason in ("", NOT_YET) else found.reason,
    }


def _said(model: EmbeddingModel, measured: Measurement | None) -> str:
    if measured is None:
        return f"Not measured on this machine yet: auto is {chosen_backend(model)}."
    when = local_time(datetime.fromisoformat(measured.measured))
    return (
        f"Measured on {when:%d %B %Y at %H:%M} with {counted(measured.num_texts, 'text')} in "
        f"{counted(measured.num_rounds, 'round')}: auto is {chosen_backend(model)}."
    )


def _measuring(bench: Workbench, given: str, *, is_measured: bool) -> None:
    """Draw the start button, the progress and Stop, and the error of the last measurement."""
    run = bench.backends.last(given)
    if run is not None and run.is_running:
        task_progress.follow(run, "Measuring")
        st.button("Stop", key="embed_measure_stop", icon=":material/stop:", on_click=run.stop)
        return
    st.button(
        "Measure again" if is_measured else "Measure", key="embed_measure", icon=":material/timer:",
        on_click=attempt, args=(REFUSED, partial(bench.backends.start, given)),
        help="About a minute for a small model; nothing else may run meanwhile",
    )  # fmt: skip
    error = st.session_state.pop(REFUSED, None) or (run.error if run is not None and run.state == "failed" else None)
    if error is not None:
        notice(error)
