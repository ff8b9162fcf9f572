"""What the Prompt lab holds between reruns: the trial on the screen, the draft above it, and what buttons do."""

from collections.abc import Callable
from dataclasses import replace

import streamlit as st

from engine.errors import EngineError
from engine.specs import Request, Sampling
from engine.workbench import RECORDED, Workbench
from engine.workbench.trials import Draft, Trial
from pages.parts import chat_editor, sampling_editor
from pages.parts.notice import attempt, of_this

PROMPT, MODE, TRIAL, ERROR, ANSWERED = "lab_prompt", "lab_mode", "lab_trial", "lab_error", "lab_answered"
COMPLETION, CHAT = "Completion", "Chat"
OPENING = "Once upon a time"
# These ask for another number of tokens than the editor does, or score what the editor only runs.
BESIDE_THE_EDITOR = ("step", "continue", "score", RECORDED)


def open_trial(bench: Workbench) -> Trial | None:
    """The trial of the address, else the one this tab showed before, else the newest; fills the editor from a new one.

    None where the address names a trial that is not there: the reason is then in the session.
    """
    state = st.session_state
    shown = state.get(TRIAL)
    asked = st.query_params.get("trial") or shown
    if TRIAL not in state:
        sampling_editor.fill(
            Sampling(), Request(max_tokens=sampling_editor.MAX_TOKENS, top_k=bench.settings.recorded_top_k)
        )
        state[PROMPT], state[TRIAL] = OPENING, None
        state.setdefault(MODE, COMPLETION)
        asked = asked or bench.newest_id()
    if not asked:
        return None
    try:
        trial = bench.trial(asked)
    except EngineError as error:
        state[ERROR] = error.bare()
        return None
    if asked != shown:
        put_on_screen(trial)
    take_over_answer(trial)
    return trial


def put_on_screen(trial: Trial) -> None:
    """Show a trial and fill the editor with what was asked for; only before widgets are drawn, or in a callback.

    What Step, Continue and Score only asked for beside the editor does not enter it.
    """
    state, draft = st.session_state, trial.draft
    state[MODE] = CHAT if draft.messages else COMPLETION
    if draft.messages:
        chat_editor.fill(draft.messages)
    else:
        state[PROMPT] = draft.prompt
    chosen = sampling_editor.length_and_scoring()
    sampling_editor.fill(_as_filled(trial), draft.request)
    if trial.label in BESIDE_THE_EDITOR:
        state.update(chosen)
    show(trial)


def _as_filled(trial: Trial) -> Sampling:
    """A trial's sampling for the editor: of the one that ships without its seed, so that Run gives another text."""
    return replace(trial.draft.sampling, seed=None) if trial.label == RECORDED else trial.draft.sampling


def show(trial: Trial | None) -> None:
    """Make `trial` the one of this tab and its address; the editor stays as it is."""
    st.session_state[TRIAL] = trial.id if trial else None
    st.session_state[ERROR] = None
    if trial:
        st.query_params["trial"] = trial.id
    elif "trial" in st.query_params:
        del st.query_params["trial"]


def draft() -> Draft:
    """What the editor says; raises ConfigError where it cannot be run."""
    if _is_chat():
        chat_editor.read()
    return _draft()


def _is_chat() -> bool:
    return st.session_state.get(MODE) == CHAT


def _draft() -> Draft:
    """What the editor says, even where there is no message to answer yet."""
    messages = chat_editor.on_screen() if _is_chat() else ()
    prompt = "" if _is_chat() else st.session_state[PROMPT]
    is_kept = not st.session_state.get(sampling_editor.UNKEPT, False)
    return Draft(prompt, messages, sampling_editor.read_sampling(), sampling_editor.read_request(), is_kept)


def as_shown(trial: Trial | None) -> Draft:
    """What gives what is on the screen: the trial with the seed it used, or the editor where that says otherwise.

    Raises ConfigError where the editor's parameters cannot be run.
    """
    if trial is None or is_edited(trial):
        return draft()
    return replace(trial.draft, sampling=replace(trial.draft.sampling, seed=trial.seed))


def is_edited(trial: Trial) -> bool:
    """True where the editor asks for something else than `trial` did."""
    try:
        now = _draft()
    except EngineError:
        return True
    then = replace(trial.draft, sampling=_as_filled(trial))
    if trial.label in BESIDE_THE_EDITOR:
        as_now = {"max_tokens": now.request.max_tokens, "prompt_logprobs": now.request.prompt_logprobs}
        then = replace(then, request=replace(then.request, **as_now))
    if then.messages:
        then = replace(then, prompt="", messages=now.messages if _goes_on(now, trial) else then.messages)
    return replace(now, is_kept=True) != replace(then, is_kept=True)


def unless_edited(trial: Trial | None) -> Trial | None:
    """The trial, where the editor still asks for what it did."""
    return None if trial is None or is_edited(trial) else trial


def _goes_on(now: Draft, trial: Trial) -> bool:
    """True where the messages on the screen are those of the trial with its answer behind them."""
    completion = trial.completion
    answer = {"role": "assistant", "content": completion.text if completion else ""}
    return now.messages == (*trial.draft.messages, answer)


def take_over_answer(trial: Trial) -> None:
    """Once a chat trial of this tab has ended, put its answer into the messages for the next turn."""
    completion = trial.completion
    if completion is None or not trial.draft.messages or st.session_state.get(ANSWERED) == trial.id:
        return
    if not is_edited(trial):
        st.session_state[ANSWERED] = trial.id
        chat_editor.add_answer(completion.text)


def problem() -> EngineError | None:
    """Why the parameters on the screen cannot be run; None where they can."""
    try:
        sampling_editor.read_sampling()
        sampling_editor.read_request()
    except EngineError as error:
        return error
    return None


def failure() -> EngineError | None:
    """What could not be done, until the editor says something else; what it cannot run stands beside its fields."""
    if problem() is not None:
        st.session_state[ERROR] = None
        return None
    asked = sampling_editor.on_screen(), st.session_state.get(MODE), st.session_state[PROMPT], chat_editor.on_screen()
    return of_this(ERROR, (st.query_params.get("trial"), *asked))


def act(action: Callable[[], Trial]) -> None:
    """Run what a button does and show the trial it starts; a failure is shown under the buttons."""
    attempt(ERROR, lambda: show(action()))
