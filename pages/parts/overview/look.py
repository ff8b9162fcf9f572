"""Look of the Overview: its style sheet in the colours of both themes, and the heading with the product's identity."""

from pathlib import Path

import streamlit as st

from pages.parts.offline_file import STYLES, option
from pages.parts.overview.sparkline import data_address

HERE = Path(__file__).parent
ICON = HERE.parent / "icon.svg"
PURPOSE = "Local language models with the exact probability of every token, and every timing kept."


def style() -> str:
    """Return the style sheet with its colours, each for the light and the dark theme."""
    colours = {name: (option("light", of), option("dark", of)) for name, of in STYLES.items()}
    variables = "".join(
        f"--ov-{name}:light-dark({light},{dark});" for name, (light, dark) in colours.items() if light and dark
    )
    return f".ov{{{variables}}}\n{(HERE / 'overview.css').read_text('utf-8')}"


def heading(title: str) -> None:
    """Draw the logo with the style sheet, the page's title and one line on what this is.

    Beside other HTML, the style sheet takes effect at once; alone, Streamlit would add it after the first elements.
    """
    logo = (
        f'<img class="ov-logo" alt="Logitbench" width="44" height="44" src="{data_address(ICON.read_text("utf-8"))}">'
    )
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="overview_heading"):
        st.html(f"<style>{style()}</style>{logo}", width=44)
        with st.container(gap=None, width="stretch"):
            st.title(title, anchor=False)
            st.caption(f"Logitbench · {PURPOSE}")
