"""Cards of an answer: the best configuration beside the control, each with its name, its meaning and its figures."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import streamlit as st

from engine.bench.analysis import series
from engine.bench.analysis.embeddings import worst_cosine
from engine.bench.analysis.explanation import baseline_role, in_words
from engine.bench.analysis.summary import CellSummary, Summary
from engine.bench.analysis.wording import cosine
from engine.runs import RunRecord
from engine.samples import METRICS_BY_NAME
from engine.units import between, quantity
from pages.parts.benchmark import verdict_columns
from pages.parts.plain import plain

BESIDE = ("decode_per_s", "ttft_s", "embedded_per_s", "pss_bytes")
"""Metrics shown below the main one."""

CARD_WIDTH = 300
BEST, LIKELY, NEXT, ONLY = "Best", "Looks best", "Next best", "Measured"
OURS = "This workbench"


class Card(NamedTuple):
    """One configuration of an answer: its role, and the figures below its main one."""

    role: str
    cell: CellSummary
    beside: str


def cards(run: RunRecord, summary: Summary, number: int | None, role: str = BEST) -> list[Card]:
    """Return the cards of the best configuration and of the control, or of the control and the next best one.

    A baseline other than the control takes its place. number: configuration that the answer is about, in that role, or
    None. If that is none or the baseline, the one with the best value takes its place, as in the sentence.
    """
    main = summary.main_metric
    able = series.measured(summary, main)
    if not able:
        return []
    control = summary.cell(summary.baseline)
    is_open = number is None or number == summary.baseline
    best = series.best_of(able, main) if is_open else summary.cell(number) or able[0]
    others = [cell for cell in able if cell is not best]
    if not others or control is None:
        return [_card(ONLY, best, main)]
    beside = baseline_role(run, summary)
    if best is control:
        return [_card(f"{BEST} · {beside}", best, main), _card(NEXT, series.best_of(others, main), main)]
    return [_card(LIKELY if is_open else role, best, main), _card(beside.capitalize(), control, main)]


def show(found: Iterable[Card], summary: Summary) -> None:
    """Draw the cards beside each other where both have room."""
    with st.container(key="bench_cards"):
        grid = st.grid(2, min_column_width=CARD_WIDTH, gap="small", border=True)
        for card in found:
            with grid.cell(), st.container(gap=None):
                _draw(card, summary)


def _draw(card: Card, summary: Summary) -> None:
    cell, metric = card.cell, METRICS_BY_NAME[summary.main_metric]
    interval = cell.metrics[metric.name]
    st.metric(
        plain(" · ".join(part for part in (card.role, cell.label) if part)),
        quantity(interval.value, metric.unit),
        help=f"{metric.label[:1].upper()}{metric.label[1:]}: {metric.formula}; median with its 95 % interval",
    )
    bounds = between(interval.low, interval.high, metric.unit, interval.value)
    if cell.verdict is not None:
        st.markdown(verdict_columns.coloured(cell.verdict, metric))
    for line in (" · ".join(part for part in (metric.label, bounds) if part), in_words(cell.settings), card.beside):
        if line:
            st.caption(plain(line))


def _card(role: str, cell: CellSummary, main: str) -> Card:
    names = [name for name in BESIDE if name != main and name in cell.metrics]
    figures = [
        f"{METRICS_BY_NAME[name].label} {quantity(cell.metrics[name].value, METRICS_BY_NAME[name].unit)}"
        for name in names
    ]
    if not math.isnan(worst_cosine(cell)):
        figures.append(f"worst cosine {cosine(worst_cosine(cell))}")
    return Card(role, cell, " · ".join(figures))
