"""Heading of the Overview: the product's identity, with the page's style sheet."""

from pathlib import Path

import streamlit as st

from pages.parts.images import data_address

HERE = Path(__file__).parent
ICON = HERE.parent / "icon.svg"
PURPOSE = "Local language models with the exact probability of every token, and every timing kept."


def show() -> None:
    """Draw the logo with the style sheet, the page's title and one line on what this is.

    Beside other HTML, the style sheet takes effect at once; alone, Streamlit would add it after the first elements.
    """
    style = (HERE / "overview.css").read_text("utf-8")
    logo = (
        f'<img class="ov-logo" alt="Logitbench" width="44" height="44" src="{data_address(ICON.read_text("utf-8"))}">'
    )
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="overview_heading"):
        st.html(f"<style>{style}</style>{logo}", width=44)
        with st.container(gap=None, width="stretch"):
            st.title("Overview", anchor=False)
            st.caption(f"Logitbench · {PURPOSE}")
