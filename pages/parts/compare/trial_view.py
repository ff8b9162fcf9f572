"""Prompt comparison: one prompt under several variants, their answers side by side, and the saved comparisons."""

import streamlit as st

from engine.comparing.arms import MAX_REPEATS, ComparisonRecord
from engine.comparing.templates import variables
from engine.errors import EngineError
from engine.units import counted
from engine.workbench import Workbench
from engine.workbench.compare_run import CompareRun
from pages.parts.compare import trial_arms, trial_list, trial_results, trial_state, trial_table
from pages.parts.notice import notice
from pages.parts.plain import plain
from pages.parts.sampling_editor import SettingError


def show(bench: Workbench) -> None:
    """Draw the comparison in the URL, or the two default variants, ready to run."""
    running = bench.compare.running  # read before the record, which is then complete if nothing is running
    record = trial_state.open_comparison(bench)
    is_running = record is not None and running is not None and running.record.id == record.id
    _prompt(bench)
    names = variables(st.session_state[trial_state.PROMPT])
    trial_table.show(names)
    trial_arms.show(bench, names)
    _buttons(bench, record, running, is_running=is_running)
    _failures(bench)
    if record is not None:
        trial_results.show(bench, record, is_running=is_running)
    trial_list.show(bench, record, is_running=is_running)


def _prompt(bench: Workbench) -> None:
    state = st.session_state
    st.text_area(
        "Prompt", key=trial_state.PROMPT, height=96, label_visibility="collapsed", persist_state="session",
        placeholder="Write a prompt; {{name}} inserts a value from the table",
    )  # fmt: skip
    engine = bench.model.engine
    if state[trial_state.CHAT] or (engine is not None and engine.capabilities.has_chat_template):
        st.toggle(
            "Send as a chat message", key=trial_state.CHAT, persist_state="session",
            help="Each model uses its own chat template",
        )  # fmt: skip
        if state[trial_state.BEFORE]:
            st.caption(f"It follows {counted(len(state[trial_state.BEFORE]), 'earlier message')}.")


def _buttons(
    bench: Workbench, record: ComparisonRecord | None, running: CompareRun | None, *, is_running: bool
) -> None:
    """Draw Run or Stop, the number of repeats, and whether the variants run one at a time."""
    missing = "" if running is not None else _missing(bench)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        if is_running:
            st.button("Stop", type="primary", icon=":material/stop:", key="arms_stop", on_click=bench.compare.stop)
        else:
            st.button(
                "Run", type="primary", icon=":material/play_arrow:", shortcut="Ctrl+Enter", key="arms_run",
                disabled=running is not None or bench.model.is_loading or bool(missing), on_click=trial_state.run,
                args=(bench,),
            )  # fmt: skip
        st.number_input(
            "Repeats", 1, MAX_REPEATS, key=trial_state.REPEATS, width=112, persist_state="session",
            help="Answers per variant; the variant's seed increases by 1 with each repeat",
        )  # fmt: skip
        st.toggle(
            "Run one at a time", key=trial_state.APART, persist_state="session",
            help="Slower, but each trial has the machine to itself, which makes speeds comparable",
        )  # fmt: skip
    st.caption(plain(missing or _told(bench, record)))


def _missing(bench: Workbench) -> str:
    """Return why the loaded model cannot answer for a variant that uses it; empty if it can or is still loading."""
    try:
        arms = trial_state.plan().arms
    except EngineError:
        return ""
    if bench.model.is_loading or all(arm.model for arm in arms):
        return ""
    try:
        bench.model.loaded()
    except EngineError as error:
        return str(error)
    return ""


def _told(bench: Workbench, record: ComparisonRecord | None) -> str:
    """Return what Run would do, and whether the plan was edited since the comparison on the screen."""
    try:
        plan = trial_state.plan()
    except SettingError as error:
        return f"Fix {error.label} to run."
    except EngineError as error:
        return str(error)
    told = [
        f"{counted(plan.num_trials, 'trial')} of up to {counted(max(arm.max_tokens for arm in plan.arms), 'token')}"
    ]
    if bench.bench.running is not None:
        told.append("a benchmark is running: trials start between its samples")
    if record is not None and trial_state.is_edited(record):
        told.append("edited since this comparison")
    return " · ".join(told)


def _failures(bench: Workbench) -> None:
    for error in (trial_state.failure(), bench.history_error):
        if error is not None:
            notice(error)
