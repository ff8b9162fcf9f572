"""A failure, shown where the person is looking: what happened, what it means, what to do next."""

import re
from collections.abc import Callable, Sequence

import streamlit as st

from engine.errors import EngineError
from pages.parts.plain import plain, visible

_ASKED = "_asked"
"""Behind a failure's key in the session: what was asked for when it was first shown."""


def notice(error: EngineError | str) -> None:
    """Show the text of a failure; it is never read as Markdown.

    Lines that are indented, as a caret under a word is, stay under the line before them as they were.
    """
    lines = [line for line in str(error).splitlines() if line.strip()]
    indented = next((number for number, line in enumerate(lines) if line[:1].isspace()), len(lines) + 1)
    parts = [plain(line) for line in lines[: max(indented - 1, 0)]]
    if indented < len(lines):
        parts.append(_as_it_is(lines[max(indented - 1, 0) :]))
    st.error("\n\n".join(parts), icon=":material/error:")


def _as_it_is(lines: Sequence[str]) -> str:
    """Markdown of lines that keep their spaces, in a fence longer than any that they hold."""
    text = "\n".join(map(visible, lines))
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}\n{text}\n{fence}"


def of_this(key: str, asked: object) -> EngineError | None:
    """The failure that `attempt` left under `key`, while what was asked for, any value that says so, is the same.

    Once a person has changed it, the failure is of something else and is forgotten.
    """
    state = st.session_state
    if state.get(key) is None:
        state.pop(key + _ASKED, None)
    elif state.setdefault(key + _ASKED, asked) != asked:
        state[key] = None
    error: EngineError | None = state.get(key)
    return error


def attempt(key: str, action: Callable[[], object]) -> None:
    """Run what a button does. Its failure, or None, stays in the session under `key`, for the page to show."""
    st.session_state[key] = None
    st.session_state.pop(key + _ASKED, None)
    try:
        action()
    except EngineError as error:
        st.session_state[key] = error.bare()
