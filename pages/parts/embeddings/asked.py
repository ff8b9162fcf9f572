"""Input of the Embeddings page, stored in its URL: source, view, model, and the selected text."""

from collections.abc import Sequence

import streamlit as st

KEPT = "embed_address"
SOURCES = {"English": "Examples", "Shipped": "Several languages", "Pasted": "Pasted", "File": "File"}
VIEWS = {"similarity": "Similarity", "map": "Map"}


def open_address() -> None:
    """Restore this tab's last input if the URL has none, which happens only when the page is entered."""
    if not st.query_params and KEPT in st.session_state:
        st.query_params.from_dict(st.session_state[KEPT])
    st.query_params["view"] = choice("view", tuple(VIEWS))
    st.session_state[KEPT] = st.query_params.to_dict()


def choice(name: str, options: Sequence[str]) -> str:
    """Return the option in the query parameter `name`, else the first one."""
    given = st.query_params.get(name, "")
    return given if given in options else options[0]


def number(name: str, most: int) -> int:
    """Return a query parameter as a number from 0 below `most`, else 0; the URL counts from 1."""
    given = st.query_params.get(name, "")
    return int(given) - 1 if given.isdecimal() and len(given) < 9 and 0 < int(given) <= most else 0
