"""What is asked of the Embeddings page, which is its address: source, view, model, and the text looked at."""

from collections.abc import Sequence

import streamlit as st

KEPT = "embed_address"
SOURCES = ("Shipped", "Pasted", "File")
VIEWS = {"similarity": "Similarity", "map": "Map"}


def open_address() -> None:
    """What this tab asked before, where the address asks for nothing, as it does only when the page is entered."""
    if not st.query_params and KEPT in st.session_state:
        st.query_params.from_dict(st.session_state[KEPT])
    st.query_params["view"] = choice("view", tuple(VIEWS))
    st.session_state[KEPT] = st.query_params.to_dict()


def choice(name: str, options: Sequence[str]) -> str:
    """One of the options, the first where the address names none of them."""
    given = st.query_params.get(name, "")
    return given if given in options else options[0]


def number(name: str, most: int) -> int:
    """A number from 0 below `most`; the address counts from 1."""
    given = st.query_params.get(name, "")
    return int(given) - 1 if given.isdecimal() and len(given) < 9 and 0 < int(given) <= most else 0
