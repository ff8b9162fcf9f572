"""State of the Prompt lab between reruns: the trial on the screen, the draft above it, and the buttons' actions."""

from collections.abc import Callable
from dataclasses import replace

import streamlit as st

from engine.chat_options import ChatOptions
from engine.errors import ConfigError, EngineError, PoolClosed
from engine.history import TrialLabel
from engine.specs import Request, Sampling
from engine.workbench import Workbench, current
from engine.workbench.trials import Draft, Message, Trial
from pages.parts import sampling_editor
from pages.parts.chat import state as chat
from pages.parts.notice import attempt, of_this

PROMPT, MODE, TRIAL, ERROR = "lab_prompt", "lab_mode", "lab_trial", "lab_error"
COMPLETION, CHAT = "Completion", "Chat"
OPENING = "Once upon a time"
# These use another number of tokens than the editor, or score what the editor only runs.
BESIDE_THE_EDITOR = (
    TrialLabel.STEP, TrialLabel.CONTINUE, TrialLabel.BRANCH, TrialLabel.SAMPLE, TrialLabel.SCORE, TrialLabel.RECORDED,
)  # fmt: skip


def open_trial(bench: Workbench) -> Trial | None:
    """Return the trial in the URL, else the last one of this tab, else the newest; a new one fills the editor.

    Returns None if the trial in the URL does not exist; the reason is then in the session state.
    """
    trial = _opened(bench)
    chat.follow(trial)
    return trial


def _opened(bench: Workbench) -> Trial | None:
    state = st.session_state
    shown = state.get(TRIAL)
    asked = st.query_params.get("trial") or shown
    if TRIAL not in state:
        sampling_editor.fill(
            Sampling(), Request(max_tokens=sampling_editor.MAX_TOKENS, top_k=bench.settings.recorded_top_k)
        )
        state[PROMPT], state[TRIAL] = OPENING, None
        state.setdefault(MODE, COMPLETION)
        asked = asked or bench.trials.newest_id()
    if not asked or _is_to_come(bench, asked):
        state[TRIAL] = asked or None
        return None
    try:
        trial = bench.trials.trial(asked)
    except EngineError as error:
        state[ERROR] = error.bare()
        return None
    if asked != shown:
        put_on_screen(trial)
    return trial


def _is_to_come(bench: Workbench, trial_id: str) -> bool:
    """Return whether this is the id of a beam search that has no result, or not yet."""
    task = bench.beams.last
    return task is not None and task.trial_id == trial_id and task.state != "done"


def put_on_screen(trial: Trial) -> None:
    """Show a trial and fill the editor with its draft; call only before widgets are drawn, or in a callback.

    Parameters that Step, Continue and Score change only for their own trial do not enter the editor, nor does any of a
    beam search, to which they do not apply.
    """
    state, draft = st.session_state, trial.draft
    state[MODE] = CHAT if draft.messages else COMPLETION
    if draft.messages:
        chat.fill(draft.messages)
    else:
        state[PROMPT] = draft.prompt
    if trial.label != TrialLabel.BEAMS:
        chosen, vocabulary = sampling_editor.length_and_scoring(), trial.steps.vocabulary
        sampling_editor.fill(_as_filled(trial), draft.request, vocabulary=vocabulary, model=trial.model.name)
        if trial.label in BESIDE_THE_EDITOR:
            state.update(chosen)
    show(trial)


def _as_filled(trial: Trial) -> Sampling:
    """Return a trial's sampling for the editor; the shipped trial's seed is dropped, so that Run gives another text."""
    return replace(trial.draft.sampling, seed=None) if trial.label == TrialLabel.RECORDED else trial.draft.sampling


def show(trial: Trial | None) -> None:
    """Store `trial` as the one of this tab and its URL; the editor remains unchanged."""
    show_id(trial.id if trial else None)


def show_id(trial_id: str | None) -> None:
    """Store the id of a trial, also of one that is still to come, as the one of this tab and its URL."""
    st.session_state[TRIAL] = trial_id
    st.session_state[ERROR] = None
    if trial_id:
        st.query_params["trial"] = trial_id
    elif "trial" in st.query_params:
        del st.query_params["trial"]


def draft() -> Draft:
    """Return the draft in the editor. Raises ConfigError if it cannot be run."""
    if not is_chat():
        return _draft(st.session_state[PROMPT])
    messages = chat.on_screen()
    if not messages:
        raise ConfigError(chat.NO_MESSAGE)
    return draft_of(messages)


def draft_of(messages: tuple[Message, ...]) -> Draft:
    """Return the draft of a conversation with the editor's parameters. Raises ConfigError if it cannot be run."""
    return _draft("", messages)


def is_chat() -> bool:
    """Return True if the page shows a conversation, not a completion."""
    return st.session_state.get(MODE) == CHAT


def _draft(prompt: str, messages: tuple[Message, ...] = ()) -> Draft:
    is_kept = not st.session_state.get(sampling_editor.UNKEPT, False)
    return Draft(prompt, messages, sampling_editor.read_sampling(), sampling_editor.read_request(), is_kept)


def as_shown(trial: Trial | None) -> Draft:
    """Return a draft that reproduces the screen: the trial with the seed it used, or the editor's if it differs.

    Raises ConfigError if the editor's parameters cannot be run.
    """
    if trial is None or is_edited(trial):
        return draft()
    return replace(trial.draft, sampling=replace(trial.draft.sampling, seed=trial.seed))


def is_edited(trial: Trial) -> bool:
    """Return True if the editor's draft differs from that of `trial`."""
    try:
        now = draft()
    except EngineError:
        return True
    then = replace(trial.draft, sampling=_as_filled(trial))
    if trial.label == TrialLabel.BEAMS:  # which are not sampled, whatever the editor says
        then = replace(then, sampling=now.sampling, request=now.request)
    if trial.label == TrialLabel.REGENERATE:  # its seed did not come from the editor
        then = replace(then, sampling=replace(then.sampling, seed=now.sampling.seed))
    if trial.label in BESIDE_THE_EDITOR:
        max_tokens, prompt_logprobs = now.request.max_tokens, now.request.prompt_logprobs
        then = replace(then, request=replace(then.request, max_tokens=max_tokens, prompt_logprobs=prompt_logprobs))
    if then.messages:
        then = replace(then, prompt="")
    return _compared(now) != _compared(then)


def _compared(draft: Draft) -> Draft:
    """Return a draft without what the editor does not have, options of a chat template, and what does not affect its
    tokens: whether it is saved, and what is recorded besides."""
    return replace(draft, is_kept=True, request=replace(draft.request, stages=False, watched=()), chat=ChatOptions())


def unless_edited(trial: Trial | None) -> Trial | None:
    """Return the trial if the editor's draft is still the same, else None."""
    return None if trial is None or is_edited(trial) else trial


def problem() -> EngineError | None:
    """Return why the parameters on the screen cannot be run, here or by the loaded engine; None if they can."""
    engine = current().model.engine
    try:
        sampling = sampling_editor.read_sampling()
        sampling_editor.read_request()
        if engine is not None:
            sampling_editor.check_taken(sampling, engine)
    except PoolClosed:  # it is being replaced
        return None
    except EngineError as error:
        return error
    return None


def failure() -> EngineError | None:
    """Return the last error until the editor changes; invalid parameters are shown beside their fields instead."""
    if problem() is not None:
        st.session_state[ERROR] = None
        return None
    asked = sampling_editor.on_screen(), st.session_state.get(MODE), st.session_state[PROMPT], chat.on_screen()
    return of_this(ERROR, (st.query_params.get("trial"), *asked))


def act(action: Callable[[], Trial]) -> None:
    """Run the action of a button and show the trial it starts; a failure is shown below the buttons."""
    attempt(ERROR, lambda: show(action()))
