"""Composer of a chat: the message being written, the controls above the conversation and those of the newest answer."""

from collections.abc import Callable
from functools import partial

import streamlit as st

from engine.units import counted
from engine.workbench import Workbench
from engine.workbench.trials import Trial
from pages.parts import prompt_state
from pages.parts.chat import actions, state, template

ACTIONS_WIDTH = 150
NO_TEMPLATE = "This model has no chat template, so it cannot answer here. Choose another one, or use Completion."


def head(bench: Workbench, trial: Trial | None) -> None:
    """Draw the system prompt, the rendered template and New chat; call inside a row."""
    system = st.session_state[state.SYSTEM]
    label = f"System prompt · {counted(len(system), 'character')}" if system.strip() else "System prompt"
    with st.popover(label, key="lab_system_prompt"):
        st.text_area(
            "System prompt", key=state.SYSTEM, height=120, width=480, persist_state="session",
            placeholder="What the model should know and how it should answer",
            help="Sent before the first message. A change holds from the next message on.",
        )  # fmt: skip
    template.popover(bench, trial)
    st.button(
        "New chat", type="tertiary", key="lab_new_chat", disabled=trial is None,
        on_click=_begin_anew,
    )  # fmt: skip


def _begin_anew() -> None:
    prompt_state.show(None)
    state.end_edit()


def show(bench: Workbench, trial: Trial | None, *, is_running: bool) -> None:
    """Draw the field of the next message, and beside it the ways to run it, or Stop."""
    engine = bench.model.engine
    can_send = engine is not None and engine.capabilities.has_chat_template
    can_score = can_send and engine is not None and engine.capabilities.scores_prompts
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", wrap=False):
        st.text_area(
            "Message", key=state.MESSAGE, height="content", label_visibility="collapsed", persist_state="session",
            placeholder="Write a message",
        )  # fmt: skip
        with st.container(width=ACTIONS_WIDTH, gap="xsmall"):
            with st.container(horizontal=True, gap="xsmall", horizontal_alignment="distribute"):
                _button("Step", None, "Send the message for one token, or add one to the answer",
                        can_send and not is_running, partial(actions.step, bench, trial))  # fmt: skip
                _button("Score only", None, "Only the probabilities of the conversation's own tokens",
                        can_score and not is_running, partial(actions.score, bench, trial))  # fmt: skip
            if is_running:
                st.button(
                    "Stop", type="primary", icon=":material/stop:", key="do_stop", width="stretch",
                    on_click=bench.trials.stop, args=(trial,),
                )  # fmt: skip
            else:
                st.button(
                    "Send", type="primary", icon=":material/send:", key="do_send",
                    shortcut=None if state.is_editing() else "Ctrl+Enter",
                    width="stretch", disabled=not can_send, on_click=prompt_state.act,
                    args=(partial(actions.send, bench, trial),),
                )  # fmt: skip
    if engine is not None and not can_send:
        st.caption(NO_TEMPLATE)


def answer_actions(bench: Workbench, trial: Trial, num_more: int, continue_help: str) -> None:
    """Draw what can be done with the newest answer: another one, or more of it."""
    engine = bench.model.engine
    is_ready = engine is not None
    has_ids = engine is not None and engine.capabilities.has_ids
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        _button("Regenerate" if trial.error is None else "Try again", "refresh",
                "Answer again, with the parameters on the screen and a new seed", is_ready,
                partial(actions.answer_again, bench, trial))  # fmt: skip
        _button(f"Continue +{num_more}", "fast_forward", continue_help, has_ids and trial.can_continue,
                partial(bench.trials.continue_trial, trial, num_more))  # fmt: skip


def _button(label: str, icon: str | None, help: str, is_enabled: bool, action: Callable[[], Trial]) -> None:
    st.button(
        label, icon=f":material/{icon}:" if icon else None, type="secondary" if icon else "tertiary", help=help,
        key=f"do_{icon or label}", disabled=not is_enabled, on_click=prompt_state.act, args=(action,),
    )  # fmt: skip
