"""Actions at a token of the strip: continue with another candidate, text or parameters, ban a token, sample from
there."""

from dataclasses import replace
from typing import Annotated

import msgspec
import streamlit as st

from engine.errors import ConfigError
from engine.history import TrialLabel
from engine.specs import MAX_ID
from engine.workbench import Workbench
from engine.workbench.resampling import with_changes
from engine.workbench.trials import Trial
from pages.parts import prompt_state, sampling_editor, token_bias
from pages.parts.labels import token_text
from pages.parts.notice import attempt
from pages.parts.plain import plain

Id = Annotated[str, msgspec.Meta(max_length=64)]
Whole = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]


class Continue(msgspec.Struct, tag_field="action", tag="continue", forbid_unknown_fields=True, frozen=True):
    """Continue with token `id` in place of the one at a step."""

    trial: Id
    step: Whole
    id: Whole


class Ban(msgspec.Struct, tag_field="action", tag="ban", forbid_unknown_fields=True, frozen=True):
    """Ban token `id` in the editor."""

    trial: Id
    step: Whole
    id: Whole


class Text(msgspec.Struct, tag_field="action", tag="text", forbid_unknown_fields=True, frozen=True):
    """Continue with a text in place of the token at a step."""

    trial: Id
    step: Whole
    text: Annotated[str, msgspec.Meta(max_length=10_000)]


class Sample(msgspec.Struct, tag_field="action", tag="sample", forbid_unknown_fields=True, frozen=True):
    """Sample several continuations from a step."""

    trial: Id
    step: Whole
    num: Whole


class Resample(msgspec.Struct, tag_field="action", tag="resample", forbid_unknown_fields=True, frozen=True):
    """Continue from a step with changed sampling parameters, by name, and the same random numbers."""

    trial: Id
    step: Whole
    sampling: dict[Id, float]


class Probable(msgspec.Struct, tag_field="action", tag="probable", forbid_unknown_fields=True, frozen=True):
    """Find the most probable continuations from a step."""

    trial: Id
    step: Whole


Branching = Continue | Text | Sample | Resample | Probable
Action = Ban | Branching


def answer(bench: Workbench, asked: object) -> None:
    """Carry out what a reader asked for at a token; call in a callback. Errors are shown below the buttons."""
    attempt(prompt_state.ERROR, lambda: _carry_out(bench, asked))


def read(asked: object) -> Action:
    """Return the action that a strip asked for. Raises ConfigError where that is none."""
    try:
        action: Action = msgspec.convert(asked, Action)
    except msgspec.ValidationError as error:
        raise ConfigError(f"The strip asked for something that cannot be done: {error}. Reload the page.") from error
    return action


def _carry_out(bench: Workbench, asked: object) -> None:
    action = read(asked)
    trial = bench.trials.trial(action.trial)
    if isinstance(action, Ban):
        token_bias.ban(action.id, sampling_editor.PREFIX, trial.steps.vocabulary, trial.model.name)
        sampling_editor.keep_seed(trial.seed)
        say_banned(trial, action.id)
        return
    shown = begun(bench, trial, action)
    if isinstance(action, Resample):
        prompt_state.put_on_screen(shown)
    elif shown is not trial:
        prompt_state.show(shown)


def say_banned(trial: Trial, id: int) -> None:
    """Say that a token is banned from the next run on; call in a callback."""
    st.toast(f"{plain(token_text(trial.steps.vocabulary.text(id)))} is banned from the next run on: see Constraints.")


def begun(bench: Workbench, trial: Trial, action: Branching) -> Trial:
    """Start what a reader asked for; return the branch, or `trial` where the results stand below that one."""
    match action:
        case Continue(step=step, id=id):
            return _continued(bench, trial, step, id)
        case Text(step=step, text=text):
            return bench.branching.with_text(trial, step, text)
        case Resample(step=step, sampling=changed):
            sampling = replace(with_changes(trial.draft.sampling, changed), seed=trial.seed)
            return bench.trials.branch(trial, step, [], sampling=sampling)
        case Sample(step=step, num=num):
            bench.branching.sample(trial, step, num)
        case Probable(step=step):
            bench.probable.find(trial, step)
    return trial


def _continued(bench: Workbench, trial: Trial, step: int, id: int) -> Trial:
    """Return the branch with another candidate; in step mode it ends there, and the next step is the reader's."""
    if trial.label == TrialLabel.STEP:
        return bench.trials.branch(trial, step, [id], num_tokens=0, label=TrialLabel.STEP)
    return bench.trials.branch(trial, step, [id])
