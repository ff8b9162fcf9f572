"""Input of the Cost page, stored in its URL: the job, the deadline and the budget."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import streamlit as st

from engine.cost import CostJob
from engine.errors import ConfigError
from pages.parts import address

KEPT = "cost_address"
GOALS = ("deadline_h", "budget_usd")
DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(CostJob)} | dict.fromkeys(GOALS)


class Asked(NamedTuple):
    """Input of the page: numbers of job and goals by name, as shown; `job` is None if they are invalid, see `error`."""

    values: Mapping[str, Any]
    job: CostJob | None
    error: ConfigError | None

    @property
    def goals(self) -> dict[str, float | None]:
        """Deadline in hours and budget in dollars, None if not set."""
        return {name: self.values[name] for name in GOALS}


def read() -> Asked:
    """Return the input in the URL, else this tab's last input; values that cannot be read become the default."""
    if not st.query_params and KEPT in st.session_state:
        st.query_params.from_dict(st.session_state[KEPT])
    st.session_state[KEPT] = st.query_params.to_dict()
    values, error = dict(DEFAULTS), None
    for name in DEFAULTS:
        if name in st.query_params:
            try:
                values[name] = _number(name, st.query_params[name])
            except ConfigError as unreadable:
                error = unreadable
    try:
        job = CostJob.from_dict({name: value for name, value in values.items() if name not in GOALS})
    except ConfigError as refused:
        return Asked(values, None, refused)
    return Asked(values, job, error)


def ask(**values: float) -> None:
    """Change numbers of the job; call in a callback."""
    for name, value in values.items():
        st.query_params[name] = str(value)


def drop(name: str) -> None:
    """Remove an input from the URL, and from what this tab keeps; call in a callback."""
    st.session_state.get(KEPT, {}).pop(name, None)
    address.put(name, "")


def begin_anew() -> None:
    """Reset the page to its default input; call in a callback."""
    st.session_state[KEPT] = {}
    st.query_params.clear()


def _number(name: str, text: str) -> float | None:
    if name in GOALS and not text:
        return None
    try:
        value = int(text) if isinstance(DEFAULTS[name], int) else float(text)
        is_finite = math.isfinite(value)
    except (ValueError, OverflowError):
        value, is_finite = 0, False
    if not is_finite or (name in GOALS and value <= 0):
        raise ConfigError(f"{name} = {text[:40]!r} in the URL: must be a number{' above 0' * (name in GOALS)}")
    return value
