"""Answer of each question in the view of its run: the first sentence, its cards or figures, adjustable objectives."""

from typing import NamedTuple

import streamlit as st

from engine.bench.analysis.capacity import Capacity, capacity
from engine.bench.analysis.summary import Summary, under_last_load
from engine.bench.analysis.time_breakdown import time_breakdown
from engine.bench.planning.plan import Objective
from engine.errors import EngineError
from engine.runs import RunRecord
from engine.samples import METRICS_BY_NAME
from engine.stats import Interval
from engine.units import between, quantity
from pages.parts.benchmark import cards
from pages.parts.notice import notice
from pages.parts.plain import plain

MOST_FIGURES, FIGURE_WIDTH = 4, 180


class Figure(NamedTuple):
    """One figure below the sentence; `interval` is the caption below it."""

    label: str
    value: str
    interval: str
    help: str


class Answer(NamedTuple):
    """The first sentence of a run, and below it cards of configurations, or figures."""

    sentence: str
    cards: list[cards.Card]
    figures: list[Figure]


def answer(run: RunRecord, summary: Summary, cell: int | None) -> Answer:
    """Return the answer to the question of a run; `cell` is the number of the recommended configuration, or None."""
    if run.question == "users":
        return _of_users(run, summary)
    if run.question == "python":
        pool = next((cell.number for cell in summary.cells if cell.settings.get("arm") == "pool"), None)
        return Answer(time_breakdown(run).sentence or summary.sentence, cards.cards(run, summary, pool, cards.OURS), [])
    if run.question == "engines":
        busiest = under_last_load(run, summary)
        return Answer(summary.sentence, cards.cards(run, busiest, busiest.best), [])
    return Answer(summary.sentence, cards.cards(run, summary, cell), [])


def objective_of(run: RunRecord) -> Objective:
    """Return the objective for good enough service: as adjusted on the screen, else as planned for the run."""
    planned = Objective.from_dict(run.plan.get("objective", {}))
    state = st.session_state
    return Objective(
        ttft_s=state.get(_key("ttft_s", run), planned.ttft_s),
        per_s=state.get(_key("per_s", run), planned.per_s),
        share=state.get(_key("share", run), round(100 * planned.share)) / 100,
    )


def adjust(run: RunRecord) -> None:
    """Draw inputs that try other values of the objective; only for runs about users."""
    if run.question != "users":
        return
    wanted = objective_of(run)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.number_input("First token within, s", 0.001, 3600.0, wanted.ttft_s, 0.5, key=_key("ttft_s", run), width=160)
        st.number_input("At least, tok/s each", 0.01, 100_000.0, wanted.per_s, 1.0, key=_key("per_s", run), width=160)
        st.number_input("For, % of requests", 50, 100, round(100 * wanted.share), 1, key=_key("share", run), width=160)


def show(found: Answer, summary: Summary) -> None:
    """Draw the sentence, and its cards or at most four figures."""
    st.subheader(plain(found.sentence), anchor=False)
    if found.cards:
        cards.show(found.cards, summary)
    if found.figures:
        grid = st.grid(MOST_FIGURES, min_column_width=FIGURE_WIDTH, gap="small")
        for figure in found.figures[:MOST_FIGURES]:
            with grid.cell(), st.container(gap=None):
                st.metric(figure.label, figure.value, help=figure.help)
                st.caption(plain(figure.interval))


def _of_users(run: RunRecord, summary: Summary) -> Answer:
    try:
        found = capacity(run, objective_of(run))
    except EngineError as error:
        notice(error)
        return Answer(summary.sentence, [], [])
    return Answer(found.sentence, [], _at_capacity(found))


def _at_capacity(found: Capacity) -> list[Figure]:
    """Return the number of users served, and the metrics at the largest measured number that is served."""
    users = f"{'≥ ' * found.is_at_least}{found.users:,}"
    figures = [Figure("Users served", users, "", "Most users for whom enough requests meet the objective")]
    served = [point for point in found.points if point.users <= found.users]
    if served:
        last = served[-1]
        suffix = f" at {last.users:,}"
        intervals = {"ttft_s": last.ttft_s, "decode_per_s": last.per_s, "goodput_per_s": last.goodput_per_s}
        figures += [
            figure._replace(label=figure.label + suffix) for figure in (_figure(*pair) for pair in intervals.items())
        ]
    return figures


def _figure(name: str, interval: Interval) -> Figure:
    metric = METRICS_BY_NAME[name]
    return Figure(
        metric.label[:1].upper() + metric.label[1:],
        quantity(interval.value, metric.unit),
        between(interval.low, interval.high, metric.unit, interval.value),
        f"{metric.formula}; median with its 95 % interval",
    )


def _key(name: str, run: RunRecord) -> str:
    return f"run_{name}_{run.id}"
