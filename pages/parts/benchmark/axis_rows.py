"""Rows for the axes of a plan: each with its values, and the remaining axes behind "Vary another setting"."""

from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine.bench.planning.axes import axes_of
from engine.bench.planning.axis import SPECS, Axis, values_of
from engine.bench.planning.embedding_cells import EXACT
from engine.bench.planning.engines import known_engines, label_of
from engine.bench.planning.layout import parse_layout
from engine.bench.planning.plan import Question
from engine.embedding.models import EMBEDDED_NAME
from engine.errors import ConfigError, sentence
from engine.machine.cores import num_cores
from engine.models import embedded_model
from engine.protocol import EXTERNAL
from pages.parts.benchmark.layout_grid import layout_grid, names
from pages.parts.labels import error_text
from pages.parts.plain import plain

SHOWN = "axes_shown"
ADD = "axes_add"
GRID = "axes_layout_grid"
GIVEN_ENGINES = "axes_engines"
"""Session state key: the engines of the plan that was opened, of which some may be unknown on this machine."""
MOST_SHOWN = 8


class Unreadable(ConfigError):
    """Raised if a row's text cannot be parsed; the row shows the reason."""


def show(question: Question) -> None:
    """Draw a row for each axis that varies, and the list of axes that could be added."""
    known = axes_of(question)
    for name in st.session_state[SHOWN]:
        _row(known[name])
    rest = [name for name in known if name not in st.session_state[SHOWN]]
    st.selectbox(
        "Vary another setting", rest, index=None, key=ADD, placeholder="Vary another setting",
        label_visibility="collapsed", width=220,
        format_func=lambda name: known[name].label, on_change=_add, args=(question,),
    )  # fmt: skip


def fill(question: Question, axes: Mapping[str, tuple[Any, ...]]) -> None:
    """Set the axes on the screen; call only before the widgets are drawn, or in a callback."""
    known = axes_of(question)
    st.session_state[SHOWN] = [name for name in known if name in axes]
    for name in st.session_state[SHOWN]:
        _fill(known[name], axes[name])


def read(question: Question) -> dict[str, tuple[Any, ...]]:
    """Return the axes on the screen with their values. Raises Unreadable, naming the text that cannot be parsed."""
    known = axes_of(question)
    return {name: _values(known[name]) for name in st.session_state[SHOWN]}


def _row(axis: Axis) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="xsmall"):
        if _choices(axis):
            st.pills(
                axis.label, _choices(axis), selection_mode="multi", key=_key(axis.name), help=_help(axis),
                persist_state="session", wrap=True, width="stretch",
            )  # fmt: skip
        else:
            label = f"{axis.label}, {axis.unit}" if axis.unit else axis.label
            st.text_input(label, key=_key(axis.name), help=_help(axis), persist_state="session")
        st.button(
            ":material/close:", type="tertiary", key=f"axes_remove_{axis.name}", help=f"Do not vary {axis.label}",
            on_click=_remove, args=(axis.name,),
        )  # fmt: skip
    if axis.name == "layout":
        layout_grid(_texts(axis.name), num_cores(), key=GRID, on_pick=_pick)
    try:
        values = _values(axis)
    except Unreadable as error:
        st.caption(f":orange[{plain(sentence(error))}]")
        return
    resolved = [_resolved(axis, value) for value in values]
    if not _choices(axis) and resolved != _texts(axis.name):
        shown = resolved[:MOST_SHOWN] + [f"… ({len(resolved):,})"] * (len(resolved) > MOST_SHOWN)
        which = "Values on this machine" if axis.kind == "layout" else "Values"
        st.caption(plain(f"{which}: {', '.join(shown)}"))


def _values(axis: Axis) -> tuple[Any, ...]:
    typed = st.session_state.get(_key(axis.name))
    if isinstance(typed, list):
        if not typed:
            raise Unreadable(f"{axis.label}: no value is selected; select at least one, or remove the axis")
        return tuple(_choices(axis)[shown] for shown in typed)
    try:
        return values_of(axis, typed or "")
    except ConfigError as error:
        raise Unreadable(error_text(error, {axis.name: axis.label})) from error


def _fill(axis: Axis, values: tuple[Any, ...]) -> None:
    if axis.kind in ("engine", "backend"):
        st.session_state[GIVEN_ENGINES] = values
    choices = _choices(axis)
    if choices:
        shown = {value: text for text, value in choices.items()}
        st.session_state[_key(axis.name)] = [shown[value] for value in values]
    else:
        st.session_state[_key(axis.name)] = ", ".join(axis.unset if value is None else str(value) for value in values)


def _choices(axis: Axis) -> dict[str, Any]:
    """Return the choices of an axis by label; empty for an axis whose values are typed."""
    if axis.kind == "switch":
        found: dict[str, Any] = {axis.choices[True]: True, axis.choices[False]: False}
    elif axis.kind == "choice":
        found = {choice: choice for choice in axis.choices}
    elif axis.kind in ("engine", "backend"):
        given = st.session_state.get(GIVEN_ENGINES, ())
        known = [EXTERNAL + one.name for one in known_engines()]
        found = {label_of(name): name for name in dict.fromkeys((*axis.choices, *known, *given))}
    else:
        return {}
    return {**found, axis.unset: None} if axis.unset else found


def _help(axis: Axis) -> str:
    return f"{axis.help[:1].upper()}{axis.help[1:]}; takes {axis.allowed}"


def _resolved(axis: Axis, value: Any) -> str:
    """Return the text of a value as this machine resolves it, including the thread count of a layout."""
    if axis.kind == "layout":
        return parse_layout(value).resolved().text
    return axis.unset if value is None else str(value)


def _texts(name: str) -> list[str]:
    """Return the values of an axis as typed, whether or not they can be parsed."""
    return [text.strip() for text in (st.session_state.get(_key(name)) or "").split(",") if text.strip()]


def _pick() -> None:
    """Apply the layouts picked on the grid; typed layouts that the grid does not offer remain."""
    picked = st.session_state[GRID].picked
    if picked is None:
        return
    typed = _texts("layout")
    kept = [text for text in typed if text in picked or text not in names(num_cores())]
    added = sorted(set(picked) - set(kept), key=lambda text: tuple(map(int, text.split("x"))))
    st.session_state[_key("layout")] = ", ".join([*kept, *added])


def _add(question: Question) -> None:
    name, known = st.session_state[ADD], axes_of(question)
    st.session_state[ADD] = None
    if name in known and name not in st.session_state[SHOWN]:  # else a page chose it that had not been redrawn yet
        st.session_state[SHOWN] = [one for one in known if one in (*st.session_state[SHOWN], name)]
        _fill(known[name], (_usual(known[name], question),))


def _usual(axis: Axis, question: Question) -> Any:
    """Return the value that an axis has if no plan sets it."""
    if axis.where != "cell":
        value = EXACT if axis.name == "backend" else getattr(SPECS[axis.where], axis.name)
        return bool(value) if axis.kind == "switch" and not axis.unset else value
    model = EMBEDDED_NAME if question == "embedding" else str(embedded_model())
    return {"layout": f"1x{num_cores()}", "model": model, "arm": "pool"}.get(axis.name)


def _remove(name: str) -> None:
    st.session_state[SHOWN] = [shown for shown in st.session_state[SHOWN] if shown != name]


def _key(name: str) -> str:
    return f"axis_{name}"
