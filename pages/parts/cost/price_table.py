"""Price table: edited in place and saved if valid, exported and imported as CSV."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from engine.cost import PRICE_FIELDS, Price, price_from_row, read_prices, write_prices
from engine.cost.prices import KINDS
from engine.errors import ConfigError, EngineError
from engine.workbench import Workbench, costing
from pages.parts.notice import attempt, notice, undo_row
from pages.parts.plain import plain

EDITOR, FILE = "cost_prices_", "cost_price_file"
SHOWN, VERSION, REPLACED = "cost_prices_shown", "cost_prices_version", "cost_prices_replaced"
ERROR, FILE_ERROR = "cost_prices_error", "cost_price_file_error"
NUMBERS = {
    "usd_per_h": ("$ per hour", "Price of a rented machine."),
    "power_w": ("Power, W", "Power draw of your own machine under load."),
    "usd_per_kwh": ("$ per kWh", "Electricity price of your own machine."),
    "purchase_usd": ("Purchase price, $", "Of your own machine."),
    "lifetime_h": ("Working life, h", "Hours of work over which the purchase price is spread."),
}
TEXTS = ("machine", "region", "kind", "dated", "source")
DATED = "Date of the price: 2024-05-31, 2024-05 or 2024."


def kept(bench: Workbench) -> tuple[Price, ...]:
    """Return the prices for the calculation; empty if the table cannot be read, which is reported."""
    try:
        return costing.load_prices(bench.settings.home)
    except EngineError as error:
        notice(error)
        return ()


def show(bench: Workbench, prices: Sequence[Price], *, is_open: bool) -> None:
    """Draw the table in an expander; invalid rows are reported below it and not saved."""
    with st.expander("Prices", key="cost_prices", expanded=is_open):
        _edit(bench, prices)
        _failure(ERROR)
        _undo(bench, prices)
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.download_button(
                "Export CSV", write_prices(prices), "prices.csv", "text/csv", key="cost_prices_csv",
                icon=":material/download:", type="tertiary", on_click="ignore",
            )  # fmt: skip
            with st.popover("Import CSV", icon=":material/upload:", type="tertiary", key="cost_prices_in"):
                st.caption(plain(f"The first line names the columns: {', '.join(PRICE_FIELDS)}."))
                st.file_uploader("File", "csv", key=FILE, label_visibility="collapsed", max_upload_size=4)
                st.button(
                    "Import", key="cost_prices_take", disabled=st.session_state.get(FILE) is None,
                    on_click=attempt, args=(FILE_ERROR, lambda: _take(bench)), help="Replaces the table.",
                )  # fmt: skip
                _failure(FILE_ERROR)
            st.button(
                "Restore default prices", icon=":material/undo:", type="tertiary", key="cost_prices_shipped",
                on_click=attempt, args=(ERROR, lambda: _forget(bench)), help="Replaces the table.",
                disabled=not costing.has_own_prices(bench.settings.home),
            )  # fmt: skip


def _failure(key: str) -> None:
    """Show the failure of the last button stored under `key`."""
    error = st.session_state.pop(key, None)
    if error is not None:
        notice(error)


def _undo(bench: Workbench, prices: Sequence[Price]) -> None:
    """Offer to undo a replacement of the table, until the new table is changed."""
    message, by = st.session_state.get(REPLACED, ("", None))
    if by == prices:
        undo_row(message, "cost_prices_undo", partial(attempt, ERROR, lambda: _restore(bench)))


def _edit(bench: Workbench, prices: Sequence[Price]) -> None:
    """Draw the editor; it is reset if something else changed the table."""
    state = st.session_state
    if state.get(SHOWN) != prices:
        state[SHOWN], state[VERSION] = prices, state.get(VERSION, 0) + 1
        state[EDITOR] = frame(prices)
    edited = st.data_editor(
        state[EDITOR], num_rows="dynamic", hide_index=True, key=f"{EDITOR}{state[VERSION]}", column_config=_config(),
        placeholder="–", alt="Prices of machines",
    )  # fmt: skip
    try:
        changed = prices_of(edited)
        if changed != prices:
            costing.save_prices(bench.settings.home, changed)
            state[SHOWN] = changed
            st.rerun()
    except EngineError as error:
        st.caption(f":orange[{plain(f'Not saved. {error}')}]")


def frame(prices: Sequence[Price]) -> pd.DataFrame:
    """Return prices as rows, in nullable columns."""
    types = {name: "string" if name in TEXTS else "Float64" for name in PRICE_FIELDS}
    return pd.DataFrame([vars(price) for price in prices], columns=PRICE_FIELDS).astype(types)


def prices_of(table: pd.DataFrame) -> tuple[Price, ...]:
    """Return the prices of an edited table. Raises ConfigError naming the row."""
    prices = []
    for number, row in enumerate(table.to_dict("records"), 1):
        try:
            prices.append(price_from_row({name: None if pd.isna(value) else value for name, value in row.items()}))
        except ConfigError as error:
            raise ConfigError(f"Row {number}: {error}") from None
    return tuple(prices)


def _config() -> dict[str, Any]:
    columns: dict[str, Any] = {
        name: st.column_config.NumberColumn(label[:1].lower() + label[1:], help=help)
        for name, (label, help) in NUMBERS.items()
    }
    return {
        **columns,
        "machine": st.column_config.TextColumn(required=True, pinned=True),
        "kind": st.column_config.SelectboxColumn(options=KINDS, required=True, default=KINDS[0]),
        "dated": st.column_config.TextColumn(help=DATED),
    }


def _take(bench: Workbench) -> None:
    text = st.session_state[FILE].getvalue().decode("utf-8-sig", "replace")
    costing.replace_prices(bench.settings.home, read_prices(text))
    _replaced(bench, "The prices were imported from the file.")


def _forget(bench: Workbench) -> None:
    costing.forget_prices(bench.settings.home)
    _replaced(bench, "The default prices were restored.")


def _replaced(bench: Workbench, message: str) -> None:
    st.session_state[REPLACED] = message, costing.load_prices(bench.settings.home)


def _restore(bench: Workbench) -> None:
    costing.restore_prices(bench.settings.home)
    st.session_state.pop(REPLACED, None)
