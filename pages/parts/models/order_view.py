"""Load order A, B, A: measures whether a second model evicts the first from memory."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from engine.bench.measurement.load_order import LoadOrder
from engine.machine.memory import available_memory
from engine.models import ModelFile
from engine.models.details import readable
from engine.units import NOT_MEASURED, quantity
from engine.workbench import Workbench
from pages.parts import address, number_columns, task_progress
from pages.parts.address import bound
from pages.parts.benchmark.charts import draw
from pages.parts.models import file_task, order_charts, place
from pages.parts.notice import attempt, notice
from pages.parts.plain import plain

FIRST, SECOND = "model", "second"
"""Query parameters of the URL."""

ERROR = "models_order_error"
ABOUT = (
    "Both files are evicted from the page cache; then A, B and A again are loaded, each generating one token. The "
    "model in the model bar is unloaded meanwhile and loaded again afterwards."
)


def show(bench: Workbench) -> None:
    """Draw the two models, the button, and their measurement."""
    error = st.session_state.get(ERROR)
    if error is not None:
        notice(error)
    files = place.models()
    if len(files) < 2:
        _second_wanted(bench, files)
        return
    a, b = _choose(bench, files)
    run = bench.load_order.of(a.path, b.path)
    if run is not None and run.is_running:
        task_progress.follow(run)
        st.button("Stop", icon=":material/stop:", key="order_stop", type="tertiary", on_click=run.stop)
        return
    _measure(bench, a, b)
    if run is not None and run.state == "done":
        _found(run.result())
    elif run is not None and run.state == "failed" and run.error is not None:
        notice(run.error)


def expectation(a: ModelFile, b: ModelFile, available: int) -> str:
    """Return the expectation from the file sizes, in a sentence."""
    both = f"A and B take {quantity(a.size + b.size, 'B')}, and {quantity(available, 'B')} of memory is free"
    if a.size + b.size <= available:
        return f"{both}: both should fit."
    return f"{both}: B should evict at least {quantity(min(a.size + b.size - available, a.size), 'B')} of A."


def frame(order: LoadOrder) -> pd.DataFrame:
    """Return one row per load."""
    columns: dict[str, Any] = {
        "load": order_charts.LOADS,
        "file": [readable((order.a if step.name == "A" else order.b).name) for step in order.steps],
        **number_columns.scaled("loading", "s", [step.load_s for step in order.steps]),
        **number_columns.scaled("first token", "s", [step.first_token_s for step in order.steps]),
    }
    for name in ("A", "B"):
        columns |= number_columns.scaled(f"{name} in RAM before", "", [step.before[name] for step in order.steps])
        columns |= number_columns.scaled(f"{name} in RAM after", "", [step.after[name] for step in order.steps])
    return pd.DataFrame(columns)


def _second_wanted(bench: Workbench, files: Mapping[str, ModelFile]) -> None:
    """Draw the ways to get another model."""
    st.caption("This needs two models, and there is only one here. Get another, or quantise this one.")
    path = files[first].path if (first := place.at_first(bench, files)) else None
    with st.container(horizontal=True, gap="small"):
        for label, view, of in (("Get another", place.GET, None), ("Quantise this one", place.QUANTISE, path)):
            st.button(label, key=f"order_to_{view}", on_click=place.go, args=(view, of))


def _choose(bench: Workbench, files: Mapping[str, ModelFile]) -> tuple[ModelFile, ModelFile]:
    """Return A: of the URL, else the loaded one; and B: of the URL, else the largest other one."""
    labels, first = place.labels(files), place.at_first(bench, files)
    by_size = sorted(files, key=lambda path: -files[path].size)
    second = next(path for path in (st.query_params.get(SECOND, ""), *by_size) if path in files and path != first)
    with st.grid(2, min_column_width=260, gap="small"):
        a = _select("A", list(files), labels, FIRST, first)
        b = _select("B", [path for path in files if path != first], labels, SECOND, second)
    return files[a], files[b]


def _select(label: str, paths: list[str], labels: Mapping[str, str], name: str, shown: str | None) -> str:
    chosen: str = st.selectbox(
        label, paths, format_func=labels.__getitem__, **bound(name, f"models_order_{name}", shown)
    )
    return chosen


def _measure(bench: Workbench, a: ModelFile, b: ModelFile) -> None:
    st.button(
        plain(f"Load A, B, A · {quantity(2 * a.size + b.size, 'B')}"), type="primary", icon=":material/repeat:",
        key="order_measure", disabled=not file_task.is_free(bench), on_click=_start, args=(bench, a, b),
    )  # fmt: skip
    st.caption(plain(f"{expectation(a, b, available_memory())} {ABOUT}"))


def _start(bench: Workbench, a: ModelFile, b: ModelFile) -> None:
    """Start the measurement; the URL names both models, as the loaded one, which is unloaded, is A without it."""
    for name, file in ((FIRST, a), (SECOND, b)):
        address.put(name, readable(file.path))
    attempt(ERROR, lambda: bench.load_order.start(a.path, b.path))


def _found(order: LoadOrder) -> None:
    """Draw the sentence, both charts and the table."""
    st.subheader(plain(order.says), anchor=False)
    columns = st.grid(2, min_column_width=380, gap="large")
    with columns.cell():
        draw(order_charts.times(order), "order_times")
    with columns.cell():
        draw(order_charts.shares(order), "order_shares")
    table = frame(order)
    st.dataframe(
        table, hide_index=True, key="order_table", placeholder=NOT_MEASURED,
        column_config=number_columns.formats(table, {}), alt="Loads in their order",
    )  # fmt: skip
