"""Token strip with its inspector, as one component: Python names the trial, the browser does the rest."""

import json
from pathlib import Path
from typing import Any, Literal

import streamlit as st

from engine import palette
from pages.parts.live import SOCKET_PATH

Mode = Literal["surprise", "uncertainty", "time"]
Unit = Literal["p", "bits", "nats"]

# A component has a single script, so its parts are joined into one module in order of use.
_SCRIPTS = (
    "format", "text", "flow", "socket", "trial", "bands", "memory", "tokens", "pin", "tooltip", "xray", "inspector",
    "head", "chips", "latency", "input", "strip", "mount",
)  # fmt: skip
_HERE = Path(__file__).parent


def script() -> str:
    """Return the component's module, including the thresholds of the palette."""
    thresholds = {"surprise": palette.SURPRISE_P, "entropy": palette.ENTROPY_BITS, "time": palette.TIME_RATIO}
    parts = [(_HERE / f"{name}.js").read_text("utf-8") for name in _SCRIPTS]
    return "\n".join([f"const PALETTE = {json.dumps(thresholds)};", *parts])


def style() -> str:
    """Return the component's style sheet, including both colour ramps."""
    themes = [f'.root[data-theme="{theme}"] {{ {palette.variables(theme)} }}' for theme in ("light", "dark")]
    return "\n".join([*themes, (_HERE / "strip.css").read_text("utf-8")])


_component = st.components.v2.component("logitbench_token_strip", js=script(), css=style())


def token_strip(
    trial: str | None,
    *,
    key: str,
    height: int | None = None,
    k: int = 10,
    mode: Mode = "surprise",
    unit: Unit = "p",
    inspector: bool = True,
    controls: bool = True,
    num_shared: int | None = None,
    pins_last: bool = False,
) -> Any:
    """Show a trial's tokens, live while it runs; None shows an empty strip.

    `k`, `mode` and `unit` are initial values; a reader's choice then stays in their browser. `height` limits the text,
    in pixels. `controls=False` leaves out the choice of colour and unit: it follows that of another strip of the page.
    `num_shared` is the number of generated tokens that this trial has in common with those beside it; the point of
    divergence is marked and pinned. `pins_last` pins the latest token, until the reader pins one. The result's `ended`
    is the trial's id in the one rerun after it ended while being shown.
    """
    return _component(
        key=key,
        data={
            "trial": trial,
            "socket": SOCKET_PATH,
            "height": height,
            "k": k,
            "mode": mode,
            "unit": unit,
            "inspector": inspector,
            "controls": controls,
            "shared": num_shared,
            "last": pins_last,
        },
        on_ended_change=_nothing,
    )


def _nothing() -> None:
    """Trigger callback: registering it makes Streamlit rerun the page, which reads the ended trial itself."""
