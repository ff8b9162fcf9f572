"""A failure, shown where the person is looking: what happened, what it means, what to do next."""

from collections.abc import Callable

import streamlit as st

from engine.errors import EngineError
from pages.parts.plain import plain


def notice(error: EngineError | str) -> None:
    """Show the text of a failure; it is never read as Markdown."""
    st.error("\n\n".join(plain(line) for line in str(error).splitlines() if line.strip()), icon=":material/error:")


def attempt(key: str, action: Callable[[], object]) -> None:
    """Run what a button does. Its failure, or None, stays in the session under `key`, for the page to show."""
    st.session_state[key] = None
    try:
        action()
    except EngineError as error:
        st.session_state[key] = error
