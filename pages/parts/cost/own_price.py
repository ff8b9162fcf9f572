"""Price of this machine, entered beside its cost: by power draw, by purchase price or both; kept among prices."""

from collections.abc import Sequence
from typing import Any

import streamlit as st

from engine.cost import Price
from engine.errors import ConfigError, sentence
from engine.units import dollars
from engine.workbench import Workbench, costing
from pages.parts.cost.job_estimates import JobEstimates
from pages.parts.cost.price_table import NUMBERS
from pages.parts.notice import attempt, notice
from pages.parts.plain import plain

KEY, ERROR = "cost_own_", "cost_own_error"
POWER, PURCHASE, BOTH = "Power draw", "Purchase price", "Both"
FIELDS = {
    POWER: ("power_w", "usd_per_kwh"),
    PURCHASE: ("purchase_usd", "lifetime_h"),
    BOTH: ("power_w", "usd_per_kwh", "purchase_usd", "lifetime_h"),
}
USUAL = {"power_w": 120.0, "usd_per_kwh": 0.3, "purchase_usd": 1200.0, "lifetime_h": 20_000.0}


def show(bench: Workbench, prices: Sequence[Price], found: JobEstimates) -> None:
    """Draw the form if this machine has no price, else a button that opens it; nothing if it was not measured."""
    own = next((one for one in found.shown if one.rate.is_here), None)
    if own is None:
        return
    if own.price is None:
        with st.container(border=True, key="cost_own", gap="small"):
            st.markdown("**What does an hour of this machine cost?**")
            _form(bench, prices, own.rate.machine, None)
    else:
        label = f"This machine: {dollars(own.price.hourly_usd)} per hour"
        with st.popover(plain(label), icon=":material/payments:", type="tertiary", key="cost_own"):
            _form(bench, prices, own.rate.machine, own.price)


def _form(bench: Workbench, prices: Sequence[Price], machine: str, kept: Price | None) -> None:
    """Draw the numbers of a price; `kept`: the present one."""
    by = st.segmented_control(
        "Priced by", FIELDS, default=_way(kept), required=True, key=KEY + "by", label_visibility="collapsed"
    )
    assert by is not None  # it is required
    with st.grid(4, min_column_width=150, gap="small"):
        for name in FIELDS[by]:
            label, help = NUMBERS[name]
            usual = (getattr(kept, name) if kept else None) or USUAL[name]
            st.number_input(label, 0.0, None, usual, key=KEY + name, help=help)
    try:
        price = Price(machine=machine, kind="own", source="typed here", **_typed(by))
    except ConfigError as error:
        st.caption(f":orange[{plain(sentence(error))}]")
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.button(
            "Save", type="secondary" if kept else "primary", key="cost_own_save", on_click=attempt,
            args=(ERROR, lambda: _save(bench, prices, price)),
        )  # fmt: skip
        st.caption(plain(f"{dollars(price.hourly_usd)} per hour of work"), width="content")
    refused = st.session_state.pop(ERROR, None)
    if refused is not None:
        notice(refused)


def _way(kept: Price | None) -> str:
    """Return what a price is made of; of a new one the power draw."""
    if kept is None or kept.purchase_usd is None:
        return POWER
    return PURCHASE if kept.power_w is None else BOTH


def _typed(by: str) -> dict[str, Any]:
    """Return the numbers typed; zeros count as not given."""
    return {name: st.session_state[KEY + name] or None for name in FIELDS[by]}


def _save(bench: Workbench, prices: Sequence[Price], price: Price) -> None:
    """Put the price in the place of the one that this machine has without a region."""
    others = [one for one in prices if one.region or one.machine.casefold() != price.machine.casefold()]
    costing.save_prices(bench.settings.home, [*others, price])
