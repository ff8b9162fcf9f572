"""Views specific to embedding runs: speed against agreement with float32, and the rates from the notes."""

import math
from collections.abc import Sequence

import plotly.graph_objects as go
import streamlit as st

from engine.bench.analysis import series
from engine.bench.analysis.embeddings import worst_cosine
from engine.bench.analysis.series import Point
from engine.bench.analysis.summary import CellSummary, Summary
from engine.bench.analysis.wording import cosine
from engine.reference import EmbeddingTiming, embedding_timings
from engine.runs import RunRecord
from engine.samples import METRICS_BY_NAME
from engine.units import NOT_MEASURED, quantity
from pages.parts import number_columns
from pages.parts.benchmark.chart_pen import ACCENT, GREY, Pen, blank

RATE = "sentences/s"


def has_agreement(summary: Summary) -> bool:
    """Return True if the vectors of any configuration were compared with those of float32."""
    return any(math.isfinite(worst_cosine(cell)) for cell in summary.cells)


def speed_and_agreement(run: RunRecord, summary: Summary, metric: str) -> go.Figure:
    """Draw `metric` against the worst cosine: the quality cost of speed."""
    cells = [cell for cell in series.measured(summary, metric) if math.isfinite(worst_cosine(cell))]
    best = series.best_of(cells, metric)
    value = quantity(best.metrics[metric].value, METRICS_BY_NAME[metric].unit)
    title = f"{value} at a worst cosine of {cosine(worst_cosine(best))}: {best.label or 'this configuration'}"
    figure = blank(title, "worst cosine to float32 (1: identical)")
    pen = Pen(figure, run, metric, cells)
    points = [Point(worst_cosine(cell), cell.metrics[metric], cell) for cell in cells]
    pen.line(points, ACCENT, marks=_marks(cells, metric), is_joined=False)
    least = min(point.x for point in points)
    room = max(1 - least, 1e-4)
    figure.update_xaxes(range=[least - room / 3, 1 + room / 20], tickformat=".5~g")
    figure.add_vline(x=1, line={"color": GREY, "dash": "dash", "width": 1.2})
    figure.update_traces(textposition="middle left")
    return figure


def _marks(cells: Sequence[CellSummary], metric: str) -> list[str]:
    """Return the label of each point: for each model and backend, the backend's name at its best configuration."""
    groups: dict[tuple[object, ...], list[CellSummary]] = {}
    for cell in cells:
        groups.setdefault((cell.settings.get("model"), cell.settings.get("backend")), []).append(cell)
    named = {series.best_of(own, metric).number for own in groups.values()}
    return [str(cell.settings.get("backend", cell.label)) if cell.number in named else "" for cell in cells]


def notes() -> None:
    """Draw the embedding rates from the notes as a table."""
    st.subheader("From the notes", anchor=False)
    st.caption("Sentences per second on other machines. Their length is unknown: compare orders of magnitude only.")
    rows = [_row(timing) for timing in embedding_timings()]
    rate = {RATE: [timing.sentences_per_s for timing in embedding_timings()]}
    st.dataframe(
        rows, hide_index=True, key="run_embedding_notes", placeholder=NOT_MEASURED,
        column_config=number_columns.formats(rate, {}), alt="Embedding rates of the notes",
    )  # fmt: skip


def _row(timing: EmbeddingTiming) -> dict[str, str | float | None]:
    return {
        "machine": timing.machine,
        "model": timing.model,
        "engine": timing.engine,
        "processes": timing.processes,
        "cores each": timing.cores_each,
        RATE: timing.sentences_per_s,
        "noted": ", ".join((timing.noted, timing.source)),
    }
