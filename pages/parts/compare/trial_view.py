"""Prompt comparison: one prompt under several variants, their answers side by side, and the saved comparisons."""

import streamlit as st

from engine.comparing.arms import MAX_REPEATS, ComparisonPlan, ComparisonRecord
from engine.errors import EngineError, sentence
from engine.units import counted
from engine.workbench import Workbench
from engine.workbench.compare_run import CompareRun
from pages.parts.compare import trial_actions, trial_list, trial_results, trial_state, trial_table
from pages.parts.notice import notice
from pages.parts.plain import plain
from pages.parts.sampling_editor import SettingError

PROMPT_WIDTH, BUTTON_WIDTH = 60, 150


def show(bench: Workbench) -> None:
    """Draw the comparison in the URL, or the two default variants, ready to run."""
    trial_actions.follow()
    running = bench.compare.running  # read before the record, which is then complete if nothing is running
    record = trial_state.open_comparison(bench)
    is_running = record is not None and running is not None and running.record.id == record.id
    st.session_state.setdefault(trial_state.SETUP, record is None)
    with st.container(horizontal=True, gap="small"):
        _setup(bench)
        plan = _plan()
        missing = _missing(bench, plan)
        _run_button(bench, running, missing, is_running=is_running)
    _remarks(bench, record, plan, missing if running is None else "")
    trial_results.show(bench, record, is_running=is_running)
    trial_list.show(bench, record, is_running=is_running)


def _setup(bench: Workbench) -> None:
    """Draw the prompt and how it is run, which fold to one line."""
    state, engine = st.session_state, bench.model.engine
    with st.expander(_summary(), key=trial_state.SETUP, on_change="rerun"):
        st.text_area(
            "Prompt", key=trial_state.PROMPT, height=68, label_visibility="collapsed", persist_state="session",
            placeholder="Write a prompt; {{name}} inserts a value from the table",
        )  # fmt: skip
        trial_table.show(trial_state.names())
        with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
            st.number_input(
                "Repeats", 1, MAX_REPEATS, key=trial_state.REPEATS, width=112, persist_state="session",
                help="Answers per variant; the variant's seed increases by 1 with each repeat",
            )  # fmt: skip
            st.toggle(
                "Run one at a time", key=trial_state.APART, persist_state="session",
                help="Slower, but each trial has the machine to itself, which makes speeds comparable",
            )  # fmt: skip
            if state[trial_state.CHAT] or (engine is not None and engine.capabilities.has_chat_template):
                st.toggle(
                    "Send as a chat message", key=trial_state.CHAT, persist_state="session",
                    help="Each model uses its own chat template",
                )  # fmt: skip
        if state[trial_state.CHAT] and state[trial_state.BEFORE]:
            st.caption(f"It follows {counted(len(state[trial_state.BEFORE]), 'earlier message')}.")


def _summary() -> str:
    """Return the prompt's beginning and, in grey, what Run would do, or why it cannot."""
    title = plain(" ".join(st.session_state[trial_state.PROMPT].split()), PROMPT_WIDTH) or "(empty prompt)"
    plan = _plan()
    if isinstance(plan, EngineError):
        return title
    parts = [
        f"{counted(plan.num_trials, 'trial')} of up to {counted(max(arm.max_tokens for arm in plan.arms), 'token')}",
        "as a chat message" if plan.is_chat else "",
        "one at a time" if plan.is_apart else "",
    ]
    return f"{title} :gray[{plain(' · '.join(one for one in parts if one))}]"


def _plan() -> ComparisonPlan | EngineError:
    """Return the plan on the screen, or why it cannot be run."""
    try:
        return trial_state.plan()
    except EngineError as error:
        return error


def _run_button(bench: Workbench, running: CompareRun | None, missing: str, *, is_running: bool) -> None:
    if is_running:
        st.button(
            "Stop", type="primary", icon=":material/stop:", key="arms_stop", width=BUTTON_WIDTH,
            on_click=bench.compare.stop,
        )  # fmt: skip
        return
    st.button(
        "Run", type="primary", icon=":material/play_arrow:", shortcut="Ctrl+Enter", key="arms_run", width=BUTTON_WIDTH,
        disabled=running is not None or bench.model.is_loading or bool(missing), on_click=trial_state.run,
        args=(bench,),
    )  # fmt: skip


def _missing(bench: Workbench, plan: ComparisonPlan | EngineError) -> str:
    """Return why the loaded model cannot answer for a variant that uses it; empty if it can or is still loading."""
    if isinstance(plan, EngineError) or bench.model.is_loading or all(arm.model for arm in plan.arms):
        return ""
    try:
        bench.model.loaded()
    except EngineError as error:
        return sentence(error)
    return ""


def _remarks(
    bench: Workbench, record: ComparisonRecord | None, plan: ComparisonPlan | EngineError, missing: str
) -> None:
    """Draw why Run cannot start, what else the reader should know before it does, and errors."""
    parts = [missing]
    if isinstance(plan, SettingError):
        parts.append(f"Fix {plan.label} to run.")
    elif isinstance(plan, EngineError):
        parts.append(sentence(plan))
    if bench.bench.running is not None:
        parts.append("A benchmark is running: trials start between its samples.")
    if record is not None and trial_state.is_edited(record):
        parts.append("Edited since this comparison.")
    if any(parts):
        st.caption(plain(" · ".join(one for one in parts if one)))
    for error in (trial_state.failure(), bench.history_error):
        if error is not None:
            notice(error)
