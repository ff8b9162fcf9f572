"""Actions of a chat: each starts the trial that is shown next. Errors are shown above the composer."""

from dataclasses import replace

from engine.history import TrialLabel
from engine.workbench import Workbench
from engine.workbench.trials import Draft, Message, Trial
from pages.parts import prompt_state
from pages.parts.chat import state


def send(bench: Workbench, trial: Trial | None) -> Trial:
    """Send the message being written; `trial` gave the answer before it, None for a new conversation."""
    return _sent(bench, prompt_state.draft_of(state.written()), trial)


def send_edited(bench: Workbench, trial: Trial) -> Trial:
    """Send an earlier message as it now reads: the conversation goes on from there, and the old one stays as it is."""
    return _sent(bench, prompt_state.draft_of(state.edited()), trial)


def step(bench: Workbench, trial: Trial | None) -> Trial:
    """Send the message being written for one token; without one, add a token to the answer on the screen."""
    has_ids = bench.model.loaded()[0].capabilities.has_ids
    if trial is not None and trial.can_continue and has_ids and not state.is_written():
        return bench.trials.continue_trial(trial, 1, label=TrialLabel.STEP)
    draft = prompt_state.draft_of(state.written())
    return _sent(bench, replace(draft, request=replace(draft.request, max_tokens=1)), trial, TrialLabel.STEP)


def answer_again(bench: Workbench, trial: Trial) -> Trial:
    """Answer the same messages anew, with the parameters and the system prompt on the screen and another seed."""
    draft = prompt_state.draft_of(state.asked())
    draft = replace(draft, sampling=replace(draft.sampling, seed=None))
    if draft.messages != trial.draft.messages:
        return bench.trials.submit(draft, TrialLabel.EDIT, after=trial)
    if not trial.prompt_ids or bench.model.loaded()[1].hash != trial.model.hash:
        return bench.trials.submit(draft, TrialLabel.REGENERATE, after=trial)
    return bench.trials.regenerate(trial, replace(draft, prompt=trial.draft.prompt))


def score(bench: Workbench, trial: Trial | None) -> Trial:
    """Score the conversation with the message being written; nothing is generated."""
    return bench.trials.score(prompt_state.draft(), after=trial)


def _sent(bench: Workbench, draft: Draft, trial: Trial | None, label: str | None = None) -> Trial:
    label = _label(draft.messages, trial) if label is None else label
    started = bench.trials.submit(draft, label, after=trial)
    state.sent()
    return started


def _label(messages: tuple[Message, ...], trial: Trial | None) -> str:
    """Return how these messages come about: as the next turn of the trial's chat, or as a change of it."""
    if trial is None:
        return TrialLabel.RUN
    before = trial.draft.messages
    is_next = len(messages) > len(before) and messages[: len(before)] == before
    return TrialLabel.TURN if is_next else TrialLabel.EDIT
