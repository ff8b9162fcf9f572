"""Command palette: Ctrl+K on any page finds a page, an action, a model, a run or a trial, and opens it."""

from pathlib import Path
from typing import Annotated

import msgspec
import streamlit as st

from pages.parts.component import component
from pages.parts.palette.entries import MOST_CHARACTERS, OPENED
from pages.parts.palette.route import PATH
from pages.parts.token_strip import module

HEIGHT = 34  # pixels of the button, reserved while its script loads
KEY, CHOSEN = "palette", "palette_chosen"
_HERE = Path(__file__).parent
COMPONENT = "logitbench_palette"
_component = component(
    COMPONENT,
    js=module(["theme", "element"], _HERE / "palette.js", "Palette"),
    css=(_HERE / "palette.css").read_text("utf-8"),
)

Short = Annotated[str, msgspec.Meta(max_length=4096)]


class Chosen(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Page that a reader chose, with the query of its address."""

    page: Annotated[str, msgspec.Meta(max_length=64)]
    query: Annotated[dict[Short, Short], msgspec.Meta(max_length=16)]


def show() -> None:
    """Draw the button that opens the palette; Ctrl+K does so too."""
    _component(key=KEY, data={"path": PATH, "most": MOST_CHARACTERS}, height=HEIGHT, on_chosen_change=_choose)


def follow() -> None:
    """Open the page that was chosen, if one was; call before a page is drawn."""
    chosen: Chosen | None = st.session_state.pop(CHOSEN, None)
    if chosen is not None:
        st.switch_page(chosen.page, query_params=chosen.query)


def _choose() -> None:
    """Keep what was chosen for `follow`, unless it is nothing that the palette offers."""
    try:
        chosen = msgspec.convert(st.session_state[KEY].chosen, Chosen)
    except msgspec.ValidationError:
        return
    if chosen.page in OPENED:
        st.session_state[CHOSEN] = chosen
