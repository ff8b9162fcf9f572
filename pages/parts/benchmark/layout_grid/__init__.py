"""Layout grid: pick layouts with instances down and threads across; a line marks where threads begin to share cores."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import streamlit as st

from pages.parts.component import component
from pages.parts.token_strip import module

FINE_UP_TO = 16
FEWEST_SHOWN = 4
SMALL_FROM, ROW_PX, SMALL_ROW_PX = 9, 34, 28
"""Number of rows from which the buttons are small; heights of a row."""
HERE = Path(__file__).parent
SCRIPT = module(["element"], HERE / "grid.js", "Grid")
STYLE = (HERE / "grid.css").read_text("utf-8")
TEXT_HEIGHT = "4 * 1.4 * 0.8rem + 12px"
"""Height of the texts above and below the rows, as CSS."""
_component = component("logitbench_layout_grid", js=SCRIPT, css=STYLE)


def sizes(num_cores: int) -> list[int]:
    """Return the counts of instances and threads on the grid: all up to 16 cores, above that ever wider steps."""
    if num_cores <= FINE_UP_TO:
        return list(range(1, max(num_cores, FEWEST_SHOWN) + 1))
    shown, step = [*range(1, 9)], 2
    while shown[-1] + step < num_cores:
        shown.append(shown[-1] + step)
        step = max(2, shown[-1] // 4)
    return [*shown, num_cores]


def names(num_cores: int) -> set[str]:
    """Return every layout that can be picked, as "2x7"."""
    return {f"{instances}x{threads}" for instances in sizes(num_cores) for threads in sizes(num_cores)}


def layout_grid(chosen: Iterable[str], num_cores: int, *, key: str, on_pick: Callable[[], None]) -> None:
    """Draw the grid with the layouts of `chosen` filled; a click updates the list in `st.session_state[key].picked`."""
    st.html(f"<style>{reserved(key, num_cores)}</style>")
    _component(key=key, data=data_of(chosen, num_cores), on_picked_change=on_pick)


def reserved(key: str, num_cores: int) -> str:
    """Return the CSS rule that gives the grid its height before its script has arrived, so that nothing below moves."""
    rows = len(sizes(num_cores))
    row_px = SMALL_ROW_PX if rows >= SMALL_FROM else ROW_PX
    return f".st-key-{key} {{ --row: {row_px}px; min-height: calc({TEXT_HEIGHT} + {rows} * var(--row)); }}"


def data_of(chosen: Iterable[str], num_cores: int) -> dict[str, Any]:
    """Return what the script draws."""
    shown = sizes(num_cores)
    return {
        "sizes": shown,
        "cores": num_cores,
        "chosen": sorted(set(chosen) & names(num_cores)),
        "isSmall": len(shown) >= SMALL_FROM,
    }
