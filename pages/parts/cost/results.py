"""Results of a job: the answer for this machine first, charts, the provenance of the figures, and a table of all."""

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from engine.cost import PROVENANCES, Estimate, Provenance, Way
from engine.stats import Interval
from engine.units import HOUR_S, NOT_MEASURED, between, time_taken
from engine.workbench import Workbench
from pages.parts import card_measurement, number_columns
from pages.parts.benchmark.charts import draw
from pages.parts.cost import asked, charts
from pages.parts.cost.job_estimates import JobEstimates
from pages.parts.plain import plain

MOST_NAMED, CONFIGURATION_WIDTH = 6, 280
OTHERWISE: dict[Way, str] = {"notes": "With one rate for all tokens", "apart": "With a separate prompt rate"}
TIME = ", time"
"""Ending of the headings of times, whose values are seconds."""

SPEEDS = {"tokens": "generation", "output": "generation", "prompt": "prefill"}
PER_DOLLAR, NOTED, HOURLY = "ktokens per $", "ktokens per $, noted", "$ per hour"
OTHERS = "These are other machines with known speeds, such as cloud instances."
HELPS = {
    "generation": "tokens generated per second by all streams",
    PER_DOLLAR: "generation × 3,600 / 1,000 / dollars per hour",
    "divergence": "KL divergence of the answers from the run's baseline, nats per token",
}


def sentence(bench: Workbench, found: JobEstimates, goals: Mapping[str, float | None]) -> None:
    """Draw the answer for this machine, with that for all machines below it.

    If this machine was not measured, only the latter, with the button that measures it."""
    among_all = next(iter(found.answers.values()))
    if found.here is None:
        st.subheader(plain(among_all.sentence), anchor=False)
        _measure(bench)
        return
    st.subheader(plain(found.here.sentence), anchor=False)
    best = found.here.chosen
    if best is not None:
        span = _span(best.hours)
        st.caption(plain(f"Measured with {best.rate.label}{f'; 95 %: {span}' if span else ''}."))
    if found.num_machines > 1 or any(goal is not None for goal in goals.values()):
        st.caption(plain(among_all.sentence))


def other_way(found: JobEstimates) -> str:
    """Return the answer by the way of counting that is not selected."""
    _, (other, beside) = found.answers.items()
    return f"{OTHERWISE[other]}: {beside.sentence}"


def _measure(bench: Workbench) -> None:
    """Show whose machines the answer is about, as this one was not measured, and offer to measure it here."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(f"{OTHERS} This machine was not measured with this model.", width="content")
        card_measurement.control(bench, "cost", is_primary=False, start=partial(_start, bench))
    card_measurement.failure(bench)


def _start(bench: Workbench) -> None:
    """Measure this machine with the loaded model; a model chosen before is dropped, as the answer is about this one."""
    bench.cards.start()
    asked.drop("model")


def drawn(found: JobEstimates, goals: Mapping[str, float | None]) -> None:
    """Draw time against money and tokens per dollar; the times alone for one machine, or where no price is known."""
    way, shown = next(iter(found.estimates.items()))
    if not found.has_prices or found.num_machines == 1:
        if any(math.isfinite(one.hours.value) for one in shown):
            draw(charts.times(shown), "cost_times")
    else:
        grid = st.grid(2, min_column_width=420, gap="large")
        with grid.cell():
            draw(charts.time_and_money(found.estimates, found.answers[way].chosen, **goals), "cost_time")
        with grid.cell():
            draw(charts.per_dollar(shown), "cost_per_dollar")
    without = [one.rate.machine for one in shown if one.price is None and not one.rate.is_here]
    if without:
        st.caption(plain(f"No price for {_listed(without, '; ')}. Add prices below."))


def rests_on(found: JobEstimates, counted: str) -> None:
    """Show the provenance of the figures: measured, noted or assumed, one line each.

    `counted` says which documents' tokens were counted.
    """
    estimates = found.shown
    texts_of: dict[Provenance, list[str]] = {provenance: [] for provenance in PROVENANCES}
    if counted:
        texts_of["measured here"].append(counted)
    for (provenance, speed, remark), machines in _speeds(estimates).items():
        texts_of[provenance].append(f"{speed} of {_listed(machines, ', ')}{f' ({remark})' if remark else ''}")
    prices = [_origin(one) for one in estimates if one.price is not None]
    if prices:
        texts_of["noted"].append(f"prices ({_listed(prices, '; ')})")
    texts_of["assumed"] += [text for one in estimates for text in one.assumptions]
    for provenance, texts in texts_of.items():
        if texts:
            st.caption(f"**{provenance.capitalize()}:** {plain(_listed(texts, '; '))}")


def _speeds(estimates: Iterable[Estimate]) -> dict[tuple[Provenance, str, str], list[str]]:
    """Group machines by the provenance, kind and remark of their speeds."""
    found: dict[tuple[Provenance, str, str], list[str]] = {}
    for one in estimates:
        for part in one.parts:
            if part.speed is not None:
                key = part.speed.provenance, SPEEDS.get(part.name, part.name), part.speed.remark
                found.setdefault(key, []).append(one.rate.place)
    return found


def _origin(one: Estimate) -> str:
    price = one.price
    parts = [price.source, price.dated] if price else []
    return ", ".join(text for text in parts if text) or "your table"


def _listed(texts: Iterable[str], separator: str) -> str:
    """Join the distinct texts, naming only the first few."""
    each = list(dict.fromkeys(texts))
    more = len(each) - MOST_NAMED
    return separator.join(each[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def table(found: JobEstimates) -> None:
    """Draw the table of every configuration considered with both ways of counting side by side.

    Times are sorted as numbers, and shown in the words that the sentence and the charts have.
    """
    shown = frame(found)
    times = [name for name in shown if name.endswith(TIME)]
    formats = {
        **number_columns.formats(shown.drop(columns=times), HELPS),
        **{name: st.column_config.NumberColumn(format=_money(shown[name])) for name in shown if name.endswith(", $")},
        **{name: st.column_config.NumberColumn(format="%,.1f", help=HELPS[PER_DOLLAR]) for name in (PER_DOLLAR, NOTED)},
        HOURLY: st.column_config.NumberColumn(format="$%,.4f"),
        "machine": st.column_config.TextColumn(pinned=True),
        "configuration": st.column_config.TextColumn(width=CONFIGURATION_WIDTH),
    }
    in_words = shown.style.format(na_rep=NOT_MEASURED).format(time_taken, subset=times, na_rep=NOT_MEASURED)
    st.dataframe(
        in_words, hide_index=True, column_config=formats, key="cost_table", placeholder=NOT_MEASURED,
        alt="Time and cost of the job",
    )  # fmt: skip


def frame(found: JobEstimates) -> pd.DataFrame:
    """Return one row per estimate: its machine, time and dollars by each way of counting, then speed and price."""
    shown = found.shown
    columns: dict[str, Any] = {
        "machine": [one.rate.place for one in shown],
        "configuration": [one.rate.label for one in shown],
    }
    for way, estimates in found.estimates.items():
        columns[charts.WAYS[way] + TIME] = [one.hours.value * HOUR_S for one in estimates]
        columns[f"{charts.WAYS[way]}, from – to"] = [_span(one.hours) for one in estimates]
        columns[f"{charts.WAYS[way]}, $"] = [one.dollars.value for one in estimates]
    columns |= {
        "divergence": [one.rate.divergence for one in shown],
        PER_DOLLAR: [one.ktokens_per_usd.value for one in shown],
        NOTED: [one.rate.noted_ktokens_per_usd for one in shown],
        "generation, tok/s": [one.rate.generation.per_s.value for one in shown],
        "generation, 95 %": [_bounds(one.rate.generation.per_s, "tok/s") for one in shown],
        "source of speed": [one.rate.generation.provenance for one in shown],
        HOURLY: [one.price.hourly_usd if one.price else None for one in shown],
        "region": [one.price.region or None if one.price else None for one in shown],
        "model": [" ".join(filter(None, (one.rate.model, one.rate.quantisation))) for one in shown],
    }
    return pd.DataFrame(columns).dropna(axis="columns", how="all")


def _bounds(interval: Interval, unit: str) -> str | None:
    return between(interval.low, interval.high, unit, interval.value) or None


def _span(hours: Interval) -> str | None:
    """Return both ends of a time; None where they are unknown, or equal once rounded."""
    low, high = charts.as_time(hours.low), charts.as_time(hours.high)
    if hours.low == 0:
        return f"up to {high}"
    return f"{low} – {high}" if low != high else None


def _money(column: pd.Series) -> str:
    """Return a format in cents, or with four decimals if the smallest amount needs them."""
    smallest = column[column > 0].min()
    return "$%,.4f" if smallest < 0.1 else "$%,.2f"
