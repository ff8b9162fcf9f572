"""Compare page: prompts under several settings, or benchmark runs, side by side; the URL selects which."""

import streamlit as st

from engine.workbench import current
from pages.parts.compare import run_view, trial_view

KIND, SHOWN = "compare_kind", "compare_shown"
PROMPTS, RUNS = "Prompts", "Runs"


def open_kind() -> str:
    """Return the kind of comparison in the URL, else the last one of this browser tab, else prompts."""
    state, address = st.session_state, st.query_params
    if "runs" in address:
        state[SHOWN] = RUNS
    elif "trials" in address or "comparison" in address:
        state[SHOWN] = PROMPTS
    kind: str = state.setdefault(SHOWN, PROMPTS)
    state[KIND] = kind
    return kind


def choose() -> None:
    """Switch to the other kind of comparison, in the state in which this tab left it."""
    st.session_state[SHOWN] = st.session_state[KIND]
    st.query_params.clear()


bench = current()
with st.container(horizontal=True, vertical_alignment="center", gap="medium", key="compare_head"):
    st.title("Compare", anchor=False, width="content")
    kind = open_kind()
    st.segmented_control(
        "What to compare", [PROMPTS, RUNS], key=KIND, required=True, on_change=choose, label_visibility="collapsed"
    )
if kind == RUNS:
    run_view.show(bench)
else:
    trial_view.show(bench)
