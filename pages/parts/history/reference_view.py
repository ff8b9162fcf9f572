"""Reference machines compared with this one, their figures as noted, and the user's own notes."""

from collections.abc import Sequence
from typing import Any

import streamlit as st

from engine.history import History
from engine.reference import TABLES, table
from engine.runs import machine_label
from engine.units import NOT_MEASURED
from pages.parts.history import machine_ranking, noted, tables
from pages.parts.history.machine_ranking import MEASURED, METRIC, Point
from pages.parts.history.tables import Column

COLUMNS = {
    "machine": Column("machine"),
    "layout": Column("instances × threads"),
    "model": Column("model"),
    "quantisation": Column("quantisation"),
    "engine": Column("engine"),
    "variant": Column("variant"),
    METRIC.name: Column(METRIC.label, METRIC.unit, METRIC.formula),
    "noted_per_s": Column("as noted", "tok/s", "the speed as rounded in the note"),
    "num_tokens": Column("tokens"),
    "noted_memory_gb": Column("memory as noted", "GB", "by a method that was not noted; not comparable with PSS"),
    "noted": Column("noted in"),
    "source": Column("source"),
}
NAMES = {
    "generation": "Generation",
    "throughput": "Throughput by price",
    "loads": "Load and inference time",
    "embeddings": "Embeddings",
    "candidates": "Candidates of one step",
}


def show(history: History) -> None:
    """Draw the view."""
    found = machine_ranking.show(history)
    _machines(found)
    noted.show(history)
    with st.expander("Bundled tables", key="history_tables"):
        name = st.selectbox(
            "Table", TABLES, key="history_shipped", format_func=lambda each: NAMES.get(each, each), width=280,
            label_visibility="collapsed",
        )  # fmt: skip
        st.dataframe(bundled(name), hide_index=True, placeholder=NOT_MEASURED, alt=NAMES.get(name, name))


def bundled(name: str) -> dict[str, list[str] | list[float | None]]:
    """Return the columns of a bundled table; those of figures as numbers, which are sorted as such."""
    rows = table(name)
    return {head: _figures([row[head] for row in rows]) for head in rows[0]}


def _figures(fields: list[str]) -> list[str] | list[float | None]:
    """Return the fields as numbers, None for an empty one; unchanged if any is something else."""
    try:
        return [float(field) if field else None for field in fields]
    except ValueError:
        return fields


def _machines(found: Sequence[Point]) -> None:
    """Draw every configuration of the references, for comparison with the best of ours."""
    rows = _rows()
    chosen = tables.draw(tables.frame(rows, COLUMNS), COLUMNS, "history_reference", "Reference timings")
    best = next((point.run_id for point in found if point.group == MEASURED), None)
    ids = list(dict.fromkeys([*([best] if best else []), *(rows[row]["run_id"] for row in chosen)]))
    if not chosen:
        st.caption("Select rows to compare their machines" + (" with the best run." if best else "."))
    elif st.button("Compare", type="primary", icon=":material/compare_arrows:", key="history_compare_reference"):
        st.switch_page("compare.py", query_params={"runs": ",".join(ids)})


def _rows() -> list[dict[str, Any]]:
    return [
        {
            **cell.facts,
            "run_id": run.id,
            "machine": machine_label(run.machine),
            **cell.settings,
            METRIC.name: cell.metrics[METRIC.name].value,
            "noted": run.machine["noted"],
            "source": run.machine["source"],
        }
        for run, cell in machine_ranking.reference_cells()
    ]
