"""Ranking of this machine among the reference machines by end-to-end speed, among models of one size at a time.

End-to-end speed is the only figure that the notes have too.
"""

from contextlib import suppress
from typing import Any, NamedTuple

import plotly.graph_objects as go
import streamlit as st

from engine.bench.analysis.summary import CellSummary, summarise
from engine.errors import EngineError
from engine.history import History
from engine.history.filters import Filter
from engine.models import read_model
from engine.models.size_class import SIZE_CLASSES, UNKNOWN, parameters_in, size_class
from engine.reference import NOTED_BY_HAND, reference_runs
from engine.runs import RunRecord, machine_label
from engine.samples import METRICS_BY_NAME
from engine.units import digits, quantity
from pages.parts import address
from pages.parts.benchmark import charts
from pages.parts.benchmark.chart_pen import ACCENT, GREY, Pen, blank, legend_below
from pages.parts.history import view
from pages.parts.plain import plain

METRIC = METRICS_BY_NAME["end_to_end_per_s"]
MEASURED, NOTED, REFERENCE = "measured", "noted by hand", "reference"
LOOKS = {MEASURED: (ACCENT, "circle"), NOTED: (ACCENT, "circle-open"), REFERENCE: (GREY, "circle-open")}
NO_RUN = "No run has such a model."
SIZE, SIZE_KEY = "size", "history_size"
MOST_CELLS, MOST_PLACES, WIDE = 200, 6, 30


class Point(NamedTuple):
    """One configuration: tokens over total seconds; `place` is its machine, with the model if it is one of ours.

    size: the size class of its model, within which speeds may be compared.
    """

    group: str
    place: str
    label: str
    per_s: float
    run_id: str
    size: str


def show(history: History) -> list[Point]:
    """Draw the sentence and the chart of one size of models; return their points, the fastest of ours first."""
    every = points(history)
    sizes = [size for size in SIZE_CLASSES if any(point.size == size for point in every)]
    size = view.part(SIZE) if view.part(SIZE) in sizes else usual_size(every)
    found = [point for point in every if point.size == size]
    st.subheader(plain(sentence(found)), anchor=False)
    if len(sizes) > 1:
        st.segmented_control(
            "Size of the models", sizes, required=True, help="Only models of about the same size are compared.",
            **address.bound(SIZE, SIZE_KEY, size),
        )  # fmt: skip
    charts.draw(chart(found), "history_standing")
    st.caption("Tokens / total seconds, prompt included. Filled dots are measured, hollow ones noted.")
    return found


def line(history: History) -> None:
    """Draw the sentence alone, and a button that opens the chart."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        every = points(history)
        size = usual_size(every)
        st.caption(plain(sentence([point for point in every if point.size == size])), width="content")
        st.button(
            "Reference machines", icon=":material/leaderboard:", type="tertiary", key="history_to_reference",
            on_click=view.show, args=("reference",),
        )  # fmt: skip


def points(history: History) -> list[Point]:
    """Return the points measured, noted manually, and of the references; the fastest of each first."""
    return [*_ours(history, "measured", MEASURED), *_ours(history, NOTED_BY_HAND, NOTED), *_references()]


def usual_size(found: list[Point]) -> str:
    """Return the size of the references' models if some of ours have it, or none are there; else ours."""
    ours = [point.size for point in found if point.group == MEASURED]
    noted = next(point.size for point in found if point.group == REFERENCE)
    return noted if noted in ours or not ours else ours[0]


def sentence(found: list[Point]) -> str:
    """Return a sentence comparing the fastest of ours with the slowest and fastest references of the same size."""
    noted = [point.per_s for point in found if point.group == REFERENCE]
    best = next((point for point in found if point.group == MEASURED), None)
    models = f"with models of {found[0].size}" if found[0].size != UNKNOWN else "with models of unknown size"
    among = ""
    if noted:
        reached = f"{digits(min(noted))} to {digits(max(noted))} {METRIC.unit}"
        among = f"the reference machines reached {reached} {models}"
    if best is None:
        return f"{among[0].upper()}{among[1:]}, end to end; none of your runs has such a model." if among else NO_RUN
    own = f"{quantity(best.per_s, METRIC.unit)} end to end at best, on {best.place}"
    return f"{own}; {among}." if among else f"{own}, {models}."


def chart(found: list[Point]) -> go.Figure:
    """Draw a line for each machine, ours on top, with a dot for each configuration."""
    ours = list(dict.fromkeys(point.place for point in found if point.group != REFERENCE))[:MOST_PLACES]
    places = [*ours, *dict.fromkeys(point.place for point in found if point.group == REFERENCE)][::-1]
    shown = [point for point in found if point.place in places]
    fastest, slowest = max(point.per_s for point in shown), min(point.per_s for point in shown)
    figure = blank(_title(shown), f"{METRIC.label}, {METRIC.unit}", height=130 + 30 * len(places))
    for group, (colour, symbol) in LOOKS.items():
        of_group = [point for point in shown if point.group == group]
        if of_group:
            figure.add_scatter(
                x=[point.per_s for point in of_group], y=[places.index(point.place) for point in of_group],
                mode="markers", name=group, marker={"color": colour, "symbol": symbol, "size": 9},
                hovertext=[_hover(point) for point in of_group], hoverinfo="text", cliponaxis=False,
            )  # fmt: skip
    figure.update_yaxes(tickvals=list(range(len(places))), ticktext=[Pen.text(place, 48) for place in places])
    is_wide = fastest > WIDE * slowest
    figure.update_xaxes(showgrid=True, **{"type": "log", "dtick": 1} if is_wide else {"rangemode": "tozero"})
    legend_below(figure)
    return figure


def _title(found: list[Point]) -> str:
    best = max(found, key=lambda point: (point.group == REFERENCE, point.per_s))
    reference = " reference" if best.group == REFERENCE else ""
    return f"{best.place} is the fastest{reference}: {quantity(best.per_s, METRIC.unit)}"


def _hover(point: Point) -> str:
    """Return the hover text of a dot."""
    return f"{Pen.text(point.place)}<br>{Pen.text(point.label)}<br><b>{quantity(point.per_s, METRIC.unit)}</b>"


def _ours(history: History, origin: str, group: str) -> list[Point]:
    rows = _measured(str(history.path), history.runs.newest_id(), origin, history)
    return [
        Point(
            group, " · ".join(filter(None, (row["machine"], row["model_name"]))), row["label"], row[METRIC.name],
            row["run_id"], _size(str(row.get("model") or ""), row["model_name"]),
        )
        for row in rows
        if row[METRIC.name] is not None
    ]  # fmt: skip


@st.cache_data(max_entries=8, ttl=300, show_spinner=False)
def _measured(path: str, newest_id: str | None, origin: str, _history: History) -> list[dict[str, Any]]:
    """Return the fastest configurations of one origin.

    This reads all samples, so it is cached until there is a new run.
    """
    return _history.find.cells(Filter(origins=(origin,)), order=METRIC.name, limit=MOST_CELLS).rows


def _references() -> list[Point]:
    return [
        Point(
            REFERENCE, machine_label(run.machine), cell.label, cell.metrics[METRIC.name].value, run.id,
            _size("", str(cell.settings.get("model") or "")),
        )
        for run, cell in reference_cells()
    ]  # fmt: skip


@st.cache_data(max_entries=512, show_spinner=False)
def _size(path: str, name: str) -> str:
    """Return the size class of a model: by its name, else by its file if that is still there."""
    number = parameters_in(name)
    if number is None and path:
        with suppress(EngineError):
            number = read_model(path).num_parameters
    return size_class(number)


@st.cache_resource(show_spinner=False)
def reference_cells() -> list[tuple[RunRecord, CellSummary]]:
    """Return every configuration of the reference machines that ship with the workbench, the fastest first."""
    found = [(run, cell) for run in reference_runs() for cell in summarise(run).cells if METRIC.name in cell.metrics]
    return sorted(found, key=lambda pair: pair[1].metrics[METRIC.name].value, reverse=True)
