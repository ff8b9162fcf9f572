"""Transcript of a chat: the user's messages as bubbles, the model's earlier answers folded to their text."""

import streamlit as st

from engine.errors import EngineError
from engine.history import TrialLabel
from engine.workbench import Workbench
from engine.workbench.trials import Message, Trial
from pages.parts import prompt_state
from pages.parts.chat import actions, state
from pages.parts.notice import attempt, notice
from pages.parts.plain import escaped_html, plain
from pages.parts.token_strip import token_strip

NO_TEXT = "(no text: the model ended its turn at once)"
STYLE = """
<style>
.bubble { width: fit-content; padding: 8px 14px; border-radius: 12px; font-size: 1rem; line-height: 1.6;
  white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: plaintext;
  background: color-mix(in srgb, currentColor 7%, transparent); }
</style>
"""


def show(bench: Workbench, trial: Trial, *, is_running: bool) -> None:
    """Draw the turns before the newest answer."""
    try:
        answers = bench.conversations.answers(trial)
    except EngineError as error:
        notice(error)
        answers = [None] * len(trial.draft.messages)
    changed = _changed_at(bench, trial)
    num_system = len(trial.draft.messages) - len(state.shown())
    for number, message in enumerate(state.shown()):
        if message.get("role") == "assistant":
            _answer(bench, number, message, answers[num_system + number])
        elif st.session_state.get(state.EDITED) == number:
            _editor(bench, trial)
        else:
            _own(bench, number, message, is_changed=number == changed, parent=trial.parent, is_running=is_running)


def _answer(bench: Workbench, number: int, message: Message, trial_id: str | None) -> None:
    """Draw an earlier answer: its text, and on request the tokens of the trial that gave it."""
    if not message.get("content"):
        st.caption(NO_TEXT)
        return
    token_strip(
        trial_id, key=f"lab_turn_{number}", k=bench.settings.shown_top_k, controls=False, is_answer_only=True,
        inspector="shared", folded=message["content"].strip() or message["content"],
    )  # fmt: skip


def _own(
    bench: Workbench, number: int, message: Message, *, is_changed: bool, parent: str | None, is_running: bool
) -> None:
    """Draw a message of the user, with what can be done with it; one of another role is shown under its name."""
    role = message.get("role", "")
    if role != "user":
        st.caption(plain(role))
    with st.container(horizontal=True, vertical_alignment="center", gap="xsmall", wrap=False):
        st.html(f'{STYLE}<div class="bubble">{escaped_html(message.get("content", ""))}</div>')
        if role == "user":
            st.button(
                ":material/edit:", type="tertiary", key=f"lab_edit_{number}", help="Edit and send again from here",
                on_click=state.begin_edit, args=(number,), disabled=is_running,
            )  # fmt: skip
        if is_changed and parent is not None:
            st.button(
                "Earlier version", icon=":material/history:", type="tertiary", key="lab_earlier_version",
                help="Open the conversation as it was before this message was edited", on_click=attempt,
                args=(prompt_state.ERROR, lambda: prompt_state.put_on_screen(bench.trials.trial(parent))),
            )  # fmt: skip


def _editor(bench: Workbench, trial: Trial) -> None:
    st.text_area(
        "Edit message", key=state.EDIT, height="content", label_visibility="collapsed", persist_state="session",
        )  # fmt: skip
    with st.container(horizontal=True, gap="small"):
        st.button(
            "Send from here", icon=":material/send:", shortcut="Ctrl+Enter", key="lab_edit_send",
            disabled=bench.model.engine is None, on_click=prompt_state.act,
            args=(lambda: actions.send_edited(bench, trial),),
        )  # fmt: skip
        st.button("Cancel", type="tertiary", key="lab_edit_cancel", on_click=state.end_edit)


def _changed_at(bench: Workbench, trial: Trial) -> int | None:
    """Return the position among the shown messages of the one that was edited to make this conversation, or None."""
    if trial.label != TrialLabel.EDIT or trial.parent is None:
        return None
    try:
        parent = bench.trials.watch(trial.parent)
    except EngineError:
        return None
    if parent is None:
        return None
    before, now = parent.draft.messages, trial.draft.messages
    first = next((n for n, (one, other) in enumerate(zip(before, now, strict=False)) if one != other), None)
    return None if first is None else first - (len(now) - len(state.shown()))
