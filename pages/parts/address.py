"""Widgets bound to URL query parameters: a link, a reload and the browser's Back button restore the same view."""

from typing import Any

import streamlit as st


def bound(name: str, key: str, shown: Any) -> dict[str, Any]:
    """Return arguments that bind a widget to the query parameter `name`: show `shown`, write changes to the URL."""
    st.session_state[key] = shown
    return {"key": key, "on_change": _take, "args": (name, key)}


def put(name: str, value: str) -> None:
    """Set a query parameter of the URL; an empty value removes it."""
    if value:
        st.query_params[name] = value
    elif name in st.query_params:
        del st.query_params[name]


def _take(name: str, key: str) -> None:
    value = st.session_state[key]
    put(name, ",".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value))
