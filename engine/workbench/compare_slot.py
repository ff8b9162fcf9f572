"""Comparisons of trials: started in the background one at a time, kept, found again; and trials put side by side."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from statistics import median
from typing import NamedTuple

from engine.comparing.arms import (
    MAX_ARMS,
    Answer,
    Arm,
    ComparisonPlan,
    ComparisonRecord,
    ComparisonSummary,
    Outcome,
    planned_answers,
)
from engine.comparing.templates import variables
from engine.errors import ConfigError, HistoryError
from engine.history import History
from engine.history.comparisons import Comparisons
from engine.pool.job import new_id
from engine.settings import Settings
from engine.tasks import TaskRunner
from engine.workbench.compare_run import Begin, CompareRun
from engine.workbench.history_slot import HistorySlot
from engine.workbench.machine_lease import MachineLease
from engine.workbench.model_slot import ModelSlot
from engine.workbench.trials import Message, Trial, perplexity

PROMPT = "prompt"
NOT_HERE = "The address names a comparison that is not here: it was deleted, or never kept. Run it again."


class Figures(NamedTuple):
    """Speed and surprise of one or more trials: medians; None where none was measured. Units as in Outcome."""

    decode_per_s: float | None
    ttft_s: float | None
    mean_surprise_bits: float | None


class CompareSlot:
    """Runs one comparison at a time in a thread of its own. Any thread may call it.

    `begin` starts a trial, `watch` finds one by its id. A history that cannot be used does not stop comparisons.
    """

    def __init__(
        self,
        settings: Settings,
        slot: ModelSlot,
        kept: HistorySlot,
        *,
        begin: Begin,
        watch: Callable[[str], Trial | None],
        machine: MachineLease,
    ) -> None:
        self._settings, self._slot, self._kept = settings, slot, kept
        self._begin, self._watch, self._machine = begin, watch, machine
        self._runner = TaskRunner[CompareRun]()
        self._unkept: dict[str, ComparisonRecord] = {}

    # one comparison at a time

    @property
    def running(self) -> CompareRun | None:
        """The comparison that runs, if one does."""
        return self._runner.running

    def start(self, plan: ComparisonPlan, name: str = "") -> str:
        """Run a comparison in the background; gives its id.

        Raises ConfigError where one runs already, ModelError where an arm asks for the loaded model and there is none.
        """
        if any(not arm.model for arm in plan.arms):
            self._slot.state.loaded()
        record = ComparisonRecord(
            id=new_id(), created_at=datetime.now(UTC), name=name, plan=plan, answers=tuple(planned_answers(plan))
        )
        run = CompareRun(
            record, self._slot, self._begin, self._keep, machine=self._machine,
            recorded_top_k=self._settings.recorded_top_k,
        )  # fmt: skip
        self._runner.start(run, lambda: self._machine.acquire(run.name, "interactive"))
        return record.id

    def stop(self) -> None:
        """End the comparison that runs; what it has is kept. Nothing happens where none runs."""
        self._runner.stop()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until nothing is compared."""
        self._runner.wait(timeout_s)

    def close(self) -> None:
        """Stop, and wait for the end."""
        self._runner.close()

    def _keep(self, record: ComparisonRecord) -> None:
        """Write a comparison to the history; where that fails it stays in memory, and the reason on the page."""
        self._unkept[record.id] = record
        history = self._kept.history
        try:
            if history is not None:
                self._save(history, record)
                self._kept.forget(record.id)
        except HistoryError as error:
            self._kept.failed(error)
            self._kept.write_later(record.id, lambda history: self._save(history, record))

    def _save(self, history: History, record: ComparisonRecord) -> None:
        history.comparisons.save(record)
        if self._unkept.get(record.id) is record:
            del self._unkept[record.id]

    # what can be looked at

    def comparison(self, id: str) -> ComparisonRecord:
        """A comparison, running or kept. Raises ConfigError where there is none."""
        run = self.running
        if run is not None and run.record.id == id:
            return run.record
        history = self._kept.history
        found = self._unkept.get(id) or (history.comparisons.comparison(id) if history else None)
        if found is None:
            raise ConfigError(NOT_HERE)
        return found

    def of_trials(self, trial_ids: Sequence[str]) -> ComparisonRecord:
        """Trials that exist already as the arms of a comparison that is not kept, its id "".

        Where their prompts differ, each is a variable of its arm. Raises ConfigError where one is not here or
        there are too many.
        """
        if not 1 <= len(trial_ids) <= MAX_ARMS:
            raise ConfigError(f"{len(trial_ids)} trials: 1 to {MAX_ARMS} can be put side by side")
        trials = [self._trial(id) for id in dict.fromkeys(trial_ids)]
        answers = (Answer(number, 0, 0, trial.id) for number, trial in enumerate(trials))
        return ComparisonRecord(
            id="", created_at=datetime.now(UTC), name="", plan=_plan_of(trials), answers=tuple(answers)
        )

    def keep_trials(self, trial_ids: Sequence[str], name: str = "") -> str:
        """Keep trials that exist already as one comparison; gives its id. Raises as `of_trials`."""
        record = replace(self.of_trials(trial_ids), id=new_id(), name=name)
        self._keep(record)
        return record.id

    def outcomes(self, record: ComparisonRecord) -> dict[str, Outcome]:
        """What came of its trials by their ids, as far as they have come; a deleted one is left out."""
        ids = [answer.trial_id for answer in record.answers if answer.trial_id]
        history = self._kept.history
        kept = {one.trial_id: one for one in history.comparisons.outcomes(ids)} if history else {}
        others = {id: self._watch(id) for id in ids if id not in kept}
        return kept | {id: _outcome(trial) for id, trial in others.items() if trial is not None}

    def _trial(self, id: str) -> Trial:
        trial = self._watch(id)
        if trial is None:
            raise ConfigError(f"The address names a trial that is not here ({id[:40]}): it was deleted, or not kept.")
        return trial

    # those that were kept

    def recent(self, limit: int = 10) -> list[ComparisonSummary]:
        """The latest comparisons that are kept, newest first."""
        history = self._kept.history
        return history.comparisons.recent(limit) if history else []

    def rename(self, id: str, name: str) -> None:
        """Give a comparison another name, or none. Raises ConfigError where that is too long, or nothing is there."""
        self._require(self._kept_in().rename(id, name))

    def delete(self, id: str) -> None:
        """Hide a comparison, not its trials; `restore` takes that back. Raises ConfigError where it runs."""
        run = self.running
        if run is not None and run.record.id == id:
            raise ConfigError("This comparison still runs. Stop it, then delete it.")
        self._require(self._kept_in().delete(id))

    def restore(self, id: str) -> None:
        """Take the deletion of a comparison back."""
        self._require(self._kept_in().restore(id))

    def _kept_in(self) -> Comparisons:
        history = self._kept.history
        if history is None:
            raise HistoryError("The history cannot be used, so nothing in it can be changed. Mend that first.")
        return history.comparisons

    def _require(self, is_found: bool) -> None:
        if not is_found:
            raise ConfigError(NOT_HERE)


def figures(outcomes: Iterable[Outcome]) -> Figures:
    """Medians over the repeats of an arm."""
    many = list(outcomes)
    measured = ([getattr(one, name) for one in many if getattr(one, name) is not None] for name in Figures._fields)
    return Figures(*(median(values) if values else None for values in measured))


def _outcome(trial: Trial) -> Outcome:
    completion = trial.completion
    nats_per_token = perplexity(trial.steps)
    return Outcome(
        trial_id=trial.id,
        text=completion.text if completion else trial.steps.text,
        model_name=trial.model.name,
        quantisation=trial.model.quantisation,
        seed=trial.seed,
        num_generated=len(trial.steps),
        decode_per_s=trial.timings.decode_per_s,
        ttft_s=trial.timings.ttft_s if len(trial.steps) else None,
        mean_surprise_bits=math.log2(nats_per_token) if nats_per_token else None,
    )


def _plan_of(trials: Sequence[Trial]) -> ComparisonPlan:
    """The plan that would ask for these trials again."""
    before = trials[0].draft.messages[:-1]
    is_chat = all(
        _last_question(trial.draft.messages) and trial.draft.messages[:-1] == before for trial in trials
    )  # fmt: skip
    prompts = [_last_question(trial.draft.messages) if is_chat else trial.draft.prompt for trial in trials]
    is_one = len(set(prompts)) == 1 and not variables(prompts[0])
    arms = (
        Arm(
            model=trial.model.path,
            sampling=replace(trial.draft.sampling, seed=trial.seed),
            max_tokens=max(trial.draft.request.max_tokens, 1),
            stop=trial.draft.request.stop,
            variables={} if is_one else {PROMPT: prompt},
        )
        for trial, prompt in zip(trials, prompts, strict=True)
    )
    return ComparisonPlan(
        prompt=prompts[0] if is_one else f"{{{{{PROMPT}}}}}",
        arms=tuple(arms),
        is_chat=is_chat,
        before=before if is_chat else (),
    )


def _last_question(messages: Sequence[Message]) -> str:
    """What the user asked last, where that is what was answered; else empty."""
    return messages[-1]["content"] if messages and messages[-1]["role"] == "user" else ""
