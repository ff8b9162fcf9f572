"""Strips with the inspector that they share beside them, which stays in view while the page scrolls."""

from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from pages.parts.token_strip import shared_inspector


@contextmanager
def beside_inspector() -> Iterator[None]:
    """Draw what the block draws beside the shared inspector, or above it where both have too little room."""
    with st.container(key="strips_frame"), st.container(horizontal=True, gap="medium", key="strips_beside"):
        strips = st.container(gap="small")
        with st.container():
            shared_inspector(key="strips_inspector")
    with strips:
        yield
