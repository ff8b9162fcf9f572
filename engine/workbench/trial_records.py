"""Trial records: a trial of this workbench as stored in the history and as listed among recent ones."""

from dataclasses import replace

from engine.errors import ConfigError
from engine.history import TrialLabel, TrialRecord, TrialSummary
from engine.history.trials import OUTPUT_CHARACTERS, title_of, versions
from engine.workbench.trials import Trial


def summary_of(trial: Trial) -> TrialSummary:
    """Return the summary, for the list of recent trials, of a trial that is not in the history yet."""
    return TrialSummary(
        id=trial.id,
        created_at=trial.created_at,
        title=title_of(trial.draft.prompt, trial.draft.messages),
        output_start=trial.steps.text[:OUTPUT_CHARACTERS],
        model_name=trial.model.name,
        num_generated=len(trial.steps),
        decode_per_s=trial.timings.decode_per_s,
        mean_surprise_bits=None,
        label=trial.label,
        parent=trial.parent,
    )


def is_stepped_over(one: TrialSummary, newer: TrialSummary | None) -> bool:
    """Return True where `newer` is a continuation of the step `one` and contains all of its text."""
    if newer is None or one.label != TrialLabel.STEP or newer.label not in (TrialLabel.STEP, TrialLabel.CONTINUE):
        return False
    return newer.title == one.title and newer.num_generated > one.num_generated


def record_of(trial: Trial) -> TrialRecord:
    """Return the history's record of a trial. Raises ConfigError where it has no result."""
    completion = trial.completion
    if completion is None:
        raise ConfigError("This trial has no result to save or download: it is still running, or it failed.")
    draft, request = trial.draft, trial.request_in_effect
    return TrialRecord(
        id=trial.id,
        created_at=trial.created_at,
        prompt=draft.prompt,
        messages=draft.messages,
        sampling=trial.sampling_in_effect,
        request=replace(request, watched=()) if request.watched else request,  # the history does not keep them
        pool=trial.pool,
        model=trial.model,
        versions={**versions(trial.pool, trial.engine), **trial.mixture},
        completion=completion,
        parent=trial.parent,
        label=trial.label,
        unknown_fields=draft.unknown_fields,
        engine=trial.engine,
        client=trial.client,
        node=trial.node,
        beams=trial.beams,
    )
