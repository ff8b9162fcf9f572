"""Widgets whose value stands in the address: a link, a reload and the browser's way back give the same view."""

from typing import Any

import streamlit as st


def bound(name: str, key: str, shown: Any) -> dict[str, Any]:
    """What ties a widget to the parameter `name`: it shows `shown`, and what is chosen goes into the address."""
    st.session_state[key] = shown
    return {"key": key, "on_change": _take, "args": (name, key)}


def put(name: str, value: str) -> None:
    """Set a parameter of the address; an empty value takes it out."""
    if value:
        st.query_params[name] = value
    elif name in st.query_params:
        del st.query_params[name]


def _take(name: str, key: str) -> None:
    value = st.session_state[key]
    put(name, ",".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value))
