"""Messages on the page: errors with what to do next, and what was just done with its undo."""

import re
from collections.abc import Callable, Sequence

import streamlit as st

from engine.errors import EngineError, sentence
from pages.parts.plain import plain, visible

_ASKED = "_asked"
"""Suffix of an error's session state key: stores the input for which the error was first shown."""


def notice(error: EngineError | str) -> None:
    """Show the text of an error; it is never read as Markdown.

    Indented lines, such as a caret below a word, keep their position below the preceding line.
    """
    lines = [line for line in sentence(error).splitlines() if line.strip()]
    indented = next((number for number, line in enumerate(lines) if line[:1].isspace()), len(lines) + 1)
    parts = [plain(line) for line in lines[: max(indented - 1, 0)]]
    if indented < len(lines):
        parts.append(_as_it_is(lines[max(indented - 1, 0) :]))
    st.error("\n\n".join(parts), icon=":material/error:")


def _as_it_is(lines: Sequence[str]) -> str:
    """Return Markdown of lines that keep their spaces, in a fence longer than any in them."""
    text = "\n".join(map(visible, lines))
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}\n{text}\n{fence}"


def of_this(key: str, asked: object) -> EngineError | None:
    """Return the error that `attempt` stored under `key`, while the input `asked` is the same.

    `asked` is any value that represents the input. Once a person has changed it, the error no longer applies and is
    cleared.
    """
    state = st.session_state
    if state.get(key) is None:
        state.pop(key + _ASKED, None)
    elif state.setdefault(key + _ASKED, asked) != asked:
        state[key] = None
    error: EngineError | None = state.get(key)
    return error


def attempt(key: str, action: Callable[[], object]) -> None:
    """Run the action of a button; store its error, or None, in the session state under `key` for the page to show."""
    st.session_state[key] = None
    st.session_state.pop(key + _ASKED, None)
    try:
        action()
    except EngineError as error:
        st.session_state[key] = error.bare()


def undo_row(message: str, key: str, undo: Callable[[], None]) -> None:
    """Draw what was just done, as plain Markdown, beside the button that calls `undo`."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(message, width="content")
        st.button("Undo", icon=":material/undo:", type="tertiary", key=key, on_click=undo)
