"""This machine's card on the page: its facts, the measurement behind them, and the forms in which it is shared."""

from collections.abc import Sequence

import streamlit as st

from engine.errors import EngineError
from engine.workbench import Workbench
from engine.workbench.machine_card import MachineCard
from engine.workbench.machine_card_manager import NAME
from engine.workbench.machine_facts import Fact, Provenance, facts_of
from engine.workbench.overview import machine_facts
from pages.parts import card_measurement
from pages.parts.notice import notice
from pages.parts.overview import card_file
from pages.parts.plain import plain

COLUMNS = 3
SHARE_WIDTH, TILE_WIDTH = 420, 220  # pixels: two tiles stand side by side in a window of 900
MARKS: dict[Provenance, str] = {
    "measured": ":green[:small[measured]]",
    "measured, disturbed": ":orange[:small[measured, disturbed]]",
    "estimated": ":orange[:small[estimated]]",
    "not measured": ":small[not measured]",
}


def show(bench: Workbench) -> None:
    """Draw the card, and below it the measurement or what can be done with the card."""
    st.subheader("This machine", anchor=False)
    card, facts = _found(bench)
    grid = st.grid(COLUMNS, min_column_width=TILE_WIDTH, gap="small", border=True)
    for fact in facts:
        with grid.cell(), st.container(gap=None):
            _fact(fact)
    with grid.cell(), st.container(gap=None):
        _conditions(card)
    if card is not None and card.disturbed:
        st.caption(plain(card.disturbed))
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="overview_actions"):
        _actions(bench, card, facts)
    card_measurement.failure(bench)


def _found(bench: Workbench) -> tuple[MachineCard | None, Sequence[Fact]]:
    """Return the card and the facts; where the kept cards or the history cannot be read, the reason is drawn."""
    card = None
    try:
        card = bench.cards.card()
        return card, machine_facts(bench, card)
    except EngineError as error:
        notice(error)
        return card, facts_of(card)


def _fact(fact: Fact) -> None:
    """Draw a tile: the question, the answer with its provenance, and what it rests on.

    Not as HTML, which Streamlit draws later than Markdown: what is below would move.
    """
    st.caption(plain(fact.label))
    st.markdown(f"**{plain(fact.value)}** {MARKS[fact.provenance]}")
    st.caption(plain(fact.note))


def _conditions(card: MachineCard | None) -> None:
    """Draw the tile with the conditions of the card; without one, what the measurement does."""
    st.caption(plain(NAME))
    if card is None:
        st.caption(
            "One button measures memory bandwidth, and the loaded model with 1 to 16 users. The card stays here, and "
            "can be shared as text, image or page."
        )
    else:
        st.markdown(f"**{plain(card.title)}**")
        st.caption(plain(card.conditions))


def _actions(bench: Workbench, card: MachineCard | None, facts: Sequence[Fact]) -> None:
    label = card_measurement.FIRST if card is None else "Measure again · 60 s"
    if card_measurement.control(bench, "overview", label, is_primary=card is None):
        return
    if card is not None:
        _share(card, facts)
        st.page_link(
            "benchmark.py", label="Samples", icon=":material/table_rows:", query_params={"run": card.run_id},
            help="The run with every sample behind these figures",
        )  # fmt: skip
    st.page_link(
        "benchmark.py", label="Search for the best settings", icon=":material/tune:",
        query_params={"question": "settings"},
    )  # fmt: skip
    st.page_link("models.py", label="Does another model fit?", icon=":material/memory:", query_params={"view": "fit"})


def _share(card: MachineCard, facts: Sequence[Fact]) -> None:
    with st.popover("Share", icon=":material/ios_share:", key="overview_share"), st.container(width=SHARE_WIDTH):
        for label, icon, ending, mime, make in (
            ("Image (SVG)", "image", "svg", "image/svg+xml", card_file.svg),
            ("HTML page, works offline", "public", "html", "text/html", card_file.html),
        ):
            st.download_button(
                label, make(card, facts), f"this-machine.{ending}", mime, key=f"overview_share_{ending}",
                icon=f":material/{icon}:", on_click="ignore", width="stretch",
            )  # fmt: skip
        st.caption("As text: copy it with the button at its corner")
        st.code(card_file.text(card, facts), language=None, wrap_lines=True)
