"""Filter bar: text, dates and the most used fields at once, the rest in a popover; the filter is stored in the URL."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from typing import Any, Literal

import streamlit as st

from engine.errors import ConfigError
from engine.history import History
from engine.history.choices import Choices
from engine.history.filters import Filter
from engine.history.search import EVERYTHING
from engine.units import digits
from pages.parts.benchmark.run_state import ASKED
from pages.parts.history import tables, view
from pages.parts.labels import distinct
from pages.parts.notice import notice

KEY, RANGED, PERIOD = "history_filter_", "history_ranged", "history_period"
SHOWN, HIDDEN = ("models", "machines", "tags"), ("quantisations", "questions", "origins", "statuses")
DATES = {"since": "From", "until": "To"}
BETWEEN, USUAL_DAYS = "between", 30
PERIODS = {"0": "Any time", "1": "Today", "7": "7 days", "30": "30 days", BETWEEN: "Between"}
"""Periods by their number of days."""

SWITCHES = {"is_starred": "Starred only", "has_archived": "Include archived", "only_archived": "Archived only"}
LABELS = {
    "models": "Model",
    "machines": "Machine",
    "tags": "Tag",
    "quantisations": "Quantisation",
    "questions": "Question",
    "origins": "Origin",
    "statuses": "Status",
}
STATUSES = {
    "run": ("done", "stopped", "interrupted", "failed", "running"),
    "trial": ("stop", "length", "cancelled"),
}
ENDS = ("from", "to")
LAST_DAY = date(2999, 12, 31)


def show(history: History, kind: Literal["run", "trial"], rows: Mapping[str, str]) -> Filter:
    """Draw the bar for runs or trials and return the filter; every change of it opens another URL.

    rows: the choice of what the rows of the list are. If the URL cannot be read, the error is shown and nothing is
    filtered.
    """
    try:
        wanted = view.asked()
    except ConfigError as error:
        notice(error)
        wanted = EVERYTHING
    bar = _Bar(wanted, history.find.choices(kind), STATUSES[kind])
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        bar.first()
        view.rows_control(rows)
        with st.popover(bar.more, icon=":material/tune:", key="history_more", width="content"):
            bar.rest()
        if wanted != EVERYTHING:
            st.button("Clear", type="tertiary", key="history_clear", on_click=view.ask, args=(EVERYTHING,))
    return wanted


def nothing(wanted: Filter) -> None:
    """Show that nothing matches the filter."""
    st.caption("All are archived; see More." if wanted == EVERYTHING else "Nothing matches this filter.")


@dataclass(frozen=True)
class _Bar:
    """The widgets, each showing one field of the filter."""

    wanted: Filter
    choices: Choices
    statuses: tuple[str, ...]

    def first(self) -> None:
        """Draw the fields in the bar itself."""
        self._widget("text", lambda key, change: st.text_input(
            "Search", key=key, on_change=change, placeholder="Search", label_visibility="collapsed",
            icon=":material/search:", help="Searches names, results, notes, tags; in trials also prompts and answers.",
        ))  # fmt: skip
        self._period()
        for name in SHOWN:
            self._several(name, width=140)

    def rest(self) -> None:
        """Draw the fields in the popover."""
        for name in HIDDEN:
            self._several(name)
        for name, label in SWITCHES.items():
            self._widget(name, partial(_switch, label))
        self._ranges()

    @property
    def more(self) -> str:
        """The label of the popover, with the number of fields in it that are set."""
        inside = (*HIDDEN, *SWITCHES)
        number = sum(getattr(self.wanted, name) != getattr(EVERYTHING, name) for name in inside)
        number += len(self.wanted.ranges)
        return f"More ({number})" if number else "More"

    def _period(self) -> None:
        """Draw the choice of a period, and the first and the last day if it is one between two."""
        is_between = self.wanted.since is not None or self.wanted.until is not None
        days = str(self.wanted.days)
        st.session_state[PERIOD] = BETWEEN if is_between else days
        st.segmented_control(
            "Period", {days: f"{days} days", **PERIODS} if days not in PERIODS else PERIODS, key=PERIOD, required=True,
            format_func=lambda each: PERIODS.get(each, f"{each} days"), label_visibility="collapsed",
            on_change=self._set_period,
        )  # fmt: skip
        if is_between:
            for name, label in DATES.items():
                self._widget(name, partial(_date, label))

    def _set_period(self) -> None:
        """Take the chosen period; between two days begins with the days of the period before it."""
        period = st.session_state[PERIOD]
        if period != BETWEEN:
            self._ask(days=int(period), since=None, until=None)
            return
        today = date.today()
        self._ask(days=0, since=today - timedelta(days=(self.wanted.days or USUAL_DAYS) - 1), until=today)

    def _several(self, name: str, width: int | Literal["stretch"] = "stretch") -> None:
        """Draw a multiple choice; skipped if there is nothing to choose between."""
        known, chosen = self._known(name), getattr(self.wanted, name)
        if len(known) < 2 and not chosen:
            return
        self._widget(name, lambda key, change: st.multiselect(
            LABELS[name], list(dict.fromkeys([*known, *chosen])), key=key, on_change=change, width=width,
            format_func=lambda each: known.get(each, each), placeholder=LABELS[name], label_visibility="collapsed",
        ))  # fmt: skip

    def _known(self, name: str) -> Mapping[str, str]:
        """Return the options of a field, with their labels."""
        found = self.statuses if name == "statuses" else getattr(self.choices, name)
        return distinct(found if isinstance(found, Mapping) else {each: ASKED.get(each, each) for each in found})

    def _widget(self, name: str, draw: Callable[[str, Callable[[], None]], object]) -> None:
        """Draw the widget of a field with its current value; a change updates the filter."""
        value = getattr(self.wanted, name)
        st.session_state[KEY + name] = list(value) if isinstance(value, tuple) else value
        draw(KEY + name, lambda: self._ask(**{name: st.session_state[KEY + name]}))

    def _ask(self, **changes: Any) -> None:
        view.act(lambda: view.ask(replace(self.wanted, **changes)))

    def _ranges(self) -> None:
        """Draw the lower and upper bounds of the settings and figures that a person picked."""
        picked = [name for name in st.session_state.get(RANGED, []) if name in self.choices.ranges]
        chosen = list(dict.fromkeys([*self.wanted.ranges, *picked]))
        names = list(dict.fromkeys([*self.choices.ranges, *chosen]))
        if not names:
            return
        st.session_state[RANGED] = chosen
        labels = distinct({name: tables.label_of(name) for name in names})
        st.multiselect(
            "Range of", names, key=RANGED, format_func=labels.__getitem__, label_visibility="collapsed",
            placeholder="Range of a setting or figure", on_change=self._drop_ranges,
        )  # fmt: skip
        for name in chosen:
            with st.container(horizontal=True, gap="small"):
                for end, word in enumerate(ENDS):
                    self._end(name, end, f"{labels[name]} {word}")

    def _end(self, name: str, end: int, label: str) -> None:
        key = f"{KEY}{name}_{ENDS[end]}"
        st.session_state[key] = self.wanted.ranges.get(name, (None, None))[end]
        hint = self.choices.ranges.get(name)
        st.number_input(
            label, value=None, key=key, placeholder=digits(hint[end]) if hint else "", width=160,
            format="%g", on_change=self._set_range, args=(name,),
        )  # fmt: skip

    def _set_range(self, name: str) -> None:
        ends = tuple(st.session_state[f"{KEY}{name}_{word}"] for word in ENDS)
        others = {each: pair for each, pair in self.wanted.ranges.items() if each != name}
        self._ask(ranges=others if ends == (None, None) else {**others, name: ends})

    def _drop_ranges(self) -> None:
        """Remove the ranges that a person deselected."""
        kept = {name: ends for name, ends in self.wanted.ranges.items() if name in st.session_state[RANGED]}
        self._ask(ranges=kept)


def _date(label: str, key: str, change: Callable[[], None]) -> None:
    st.date_input(label, value=None, key=key, on_change=change, width=150, max_value=LAST_DAY)


def _switch(label: str, key: str, change: Callable[[], None]) -> None:
    st.toggle(label, key=key, on_change=change)
