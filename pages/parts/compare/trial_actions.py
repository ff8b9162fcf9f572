"""Actions at a token of an answer that is compared: ban it in its variant, or go on from there in the Prompt lab."""

import streamlit as st

from engine.workbench import Workbench
from pages.parts import branch_actions, token_bias
from pages.parts.compare import trial_arms, trial_state

BEGUN = "arms_begun"


def answer(bench: Workbench, number: int, asked: object) -> None:
    """Carry out what a reader asked for at a token of a variant, by its number; call in a callback."""
    trial_state.act(lambda: _carry_out(bench, number, asked))


def follow() -> None:
    """Open the Prompt lab on the trial that an action has begun, if there is one; call before the page is drawn."""
    trial_id = st.session_state.pop(BEGUN, None)
    if trial_id is not None:
        st.switch_page("prompt_lab.py", query_params={"trial": trial_id})


def _carry_out(bench: Workbench, number: int, asked: object) -> None:
    action = branch_actions.read(asked)
    trial = bench.trials.trial(action.trial)
    if isinstance(action, branch_actions.Ban):
        token_bias.ban(action.id, trial_arms.key_prefix(number), trial.steps.vocabulary, trial.model.name)
        branch_actions.say_banned(trial, action.id)
    else:
        st.session_state[BEGUN] = branch_actions.begun(bench, trial, action).id
