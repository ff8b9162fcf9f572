"""Comparisons of trials: run in the background one at a time, stored and looked up; existing trials side by side."""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from statistics import median
from typing import NamedTuple

from engine.chat_options import ChatOptions
from engine.comparing.arms import (
    MAX_ARMS,
    ROLES,
    Answer,
    Arm,
    ComparisonPlan,
    ComparisonRecord,
    ComparisonSummary,
    Outcome,
    planned_answers,
)
from engine.comparing.templates import variables
from engine.errors import ConfigError, EngineError, HistoryError
from engine.history import History
from engine.history.comparisons import Comparisons
from engine.ids import new_id
from engine.settings import Settings
from engine.tasks import TaskRunner
from engine.workbench.compare_run import CompareRun, Submit
from engine.workbench.history_manager import HistoryManager
from engine.workbench.machine_lease import MachineLease
from engine.workbench.model_manager import ModelManager
from engine.workbench.plain_prompts import gives
from engine.workbench.trials import Draft, Message, Trial, perplexity

PROMPT = "prompt"
OTHER_MESSAGES = (
    "This call cannot be a variant: the messages of a comparison are texts of system, user and assistant, without "
    "names and calls of tools, and the last one is the user's."
)
OTHER_BEGINNINGS = "These calls cannot be variants of one prompt: their messages before the last one differ."
OTHER_OPTIONS = (
    "This call cannot be a variant: it sent tools or options of the chat template, which a comparison does not have."
)
OTHER_IDS = "This call cannot be a variant: its prompt was sent as token ids, and its text gives other ids."
NOT_HERE = "The URL names a comparison that does not exist: it was deleted or never saved. Run it again."


class Figures(NamedTuple):
    """Median speed and surprise of one or more trials, None where not measured. Units as in Outcome."""

    decode_per_s: float | None
    ttft_s: float | None
    mean_surprise_bits: float | None


class ComparisonManager:
    """Runner of comparisons, one at a time in a thread of its own. Any thread may call it.

    `submit` starts a trial, `watch` finds one by its id. Comparisons also run while the history is unusable.
    """

    def __init__(
        self,
        settings: Settings,
        model_manager: ModelManager,
        kept: HistoryManager,
        *,
        submit: Submit,
        watch: Callable[[str], Trial | None],
        machine: MachineLease,
    ) -> None:
        self._settings, self._model_manager, self._kept = settings, model_manager, kept
        self._submit, self._watch, self._machine = submit, watch, machine
        self._runner = TaskRunner[CompareRun]()
        self._unkept: dict[str, ComparisonRecord] = {}

    # the running comparison

    @property
    def running(self) -> CompareRun | None:
        """The running comparison, or None."""
        return self._runner.running

    def start(self, plan: ComparisonPlan, name: str = "") -> str:
        """Run a comparison in the background; return its id.

        Raises ConfigError where one is already running, ModelError where a variant uses the loaded model and there is
        none.
        """
        if any(not arm.model for arm in plan.arms):
            self._model_manager.state.loaded()
        record = ComparisonRecord(
            id=new_id(), created_at=datetime.now(UTC), name=name, plan=plan, answers=tuple(planned_answers(plan))
        )
        run = CompareRun(
            record, self._model_manager, self._submit, self._keep, machine=self._machine,
            recorded_top_k=self._settings.recorded_top_k,
        )  # fmt: skip
        self._runner.start(run, lambda: self._machine.acquire(run.name, "interactive"))
        return record.id

    def stop(self) -> None:
        """Stop the running comparison, if there is one; its answers so far are stored."""
        self._runner.stop()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until no comparison is running."""
        self._runner.wait(timeout_s)

    def close(self) -> None:
        """Stop the running comparison and wait for it to end."""
        self._runner.close()

    def _keep(self, record: ComparisonRecord, is_complete: bool = True) -> None:
        """Store a comparison in the history; on failure it stays in memory, and the page shows the reason."""
        self._unkept[record.id] = record
        history = self._kept.history
        try:
            if history is not None:
                self._save(history, record)
                self._kept.forget(record.id)
                return
        except HistoryError as error:
            self._kept.failed(error)
        read = (lambda: record) if is_complete else None
        self._kept.write_later(record.id, lambda history: self._save(history, record), read)

    def _save(self, history: History, record: ComparisonRecord) -> None:
        history.comparisons.save(record)
        if self._unkept.get(record.id) is record:
            del self._unkept[record.id]

    # look-up

    def comparison(self, id: str) -> ComparisonRecord:
        """Return a comparison, running or stored. Raises ConfigError where there is none."""
        run = self.running
        if run is not None and run.record.id == id:
            return run.record
        history = self._kept.history
        found = self._unkept.get(id) or (history.comparisons.comparison(id) if history else None)
        if found is None:
            raise ConfigError(NOT_HERE)
        return found

    def of_trials(self, trial_ids: Sequence[str]) -> ComparisonRecord:
        """Return existing trials as the variants of a comparison that is not stored and has the id "".

        Where their prompts differ, the prompt is a variable of each variant. Raises ConfigError where a trial does not
        exist or there are too many, and for a call whose prompt a comparison cannot send with the same token ids, as
        far as that can be told: of a chat that is stored only the model of the call tells it, while it is loaded.
        """
        if not 1 <= len(trial_ids) <= MAX_ARMS:
            raise ConfigError(f"{len(trial_ids)} trials: 1 to {MAX_ARMS} can be compared side by side")
        trials = [self._trial(id) for id in dict.fromkeys(trial_ids)]
        answers = (Answer(number, 0, 0, trial.id) for number, trial in enumerate(trials))
        plan = _plan_of(trials)
        for arm, trial in zip(plan.arms, trials, strict=True):
            if trial.client:
                self._check_call(trial, plan, plan.text(arm, plan.rows[0]))
        return ComparisonRecord(id="", created_at=datetime.now(UTC), name="", plan=plan, answers=tuple(answers))

    def _check_call(self, call: Trial, plan: ComparisonPlan, prompt: str) -> None:
        """Raise ConfigError where this prompt of a plan, its last message in a chat, is not the prompt of the call."""
        if call.draft.messages and not plan.is_chat:
            raise ConfigError(OTHER_BEGINNINGS if _last_question(call.draft.messages) else OTHER_MESSAGES)
        messages = (*map(dict, plan.before), {"role": "user", "content": prompt}) if plan.is_chat else ()
        is_same: bool | None = None
        with suppress(EngineError):  # no model is loaded
            engine, identity = self._model_manager.state.loaded()
            if identity.hash == call.model.hash:
                is_same = gives(engine, Draft(prompt, messages), call.prompt_ids)
        if is_same is False or call.draft.chat != ChatOptions():
            raise ConfigError(OTHER_OPTIONS if call.draft.messages else OTHER_IDS)

    def keep_trials(self, trial_ids: Sequence[str], name: str = "") -> str:
        """Store existing trials as one comparison; return its id. Raises as `of_trials`."""
        record = replace(self.of_trials(trial_ids), id=new_id(), name=name)
        self._keep(record)
        return record.id

    def outcomes(self, record: ComparisonRecord) -> dict[str, Outcome]:
        """Return the outcomes so far of a comparison's trials, by trial id; deleted trials are left out."""
        ids = [answer.trial_id for answer in record.answers if answer.trial_id]
        history = self._kept.history
        kept = {one.trial_id: one for one in history.comparisons.outcomes(ids)} if history else {}
        others = {id: self._watch(id) for id in ids if id not in kept}
        return kept | {id: _outcome(trial) for id, trial in others.items() if trial is not None}

    def _trial(self, id: str) -> Trial:
        trial = self._watch(id)
        if trial is None:
            raise ConfigError(f"The URL names a trial that does not exist ({id[:40]}): it was deleted or not saved.")
        return trial

    # stored comparisons

    def recent(self, limit: int = 10) -> list[ComparisonSummary]:
        """Return the latest stored comparisons, newest first."""
        history = self._kept.history
        return history.comparisons.recent(limit) if history else []

    def rename(self, id: str, name: str) -> None:
        """Rename a comparison; the name may be empty. Raises ConfigError for an overlong name or unknown comparison."""
        self._require(self._kept_in().rename(id, name))

    def delete(self, id: str) -> None:
        """Hide a comparison, but not its trials, until `restore`. Raises ConfigError where it is running."""
        run = self.running
        if run is not None and run.record.id == id:
            raise ConfigError("This comparison is still running. Stop it, then delete it.")
        self._require(self._kept_in().delete(id))

    def restore(self, id: str) -> None:
        """Undo the deletion of a comparison. Raises ConfigError where there is none."""
        self._require(self._kept_in().restore(id))

    def _kept_in(self) -> Comparisons:
        history = self._kept.history
        if history is None:
            raise HistoryError("The history is unusable, so nothing in it can be changed. Fix that first.")
        return history.comparisons

    def _require(self, is_found: bool) -> None:
        if not is_found:
            raise ConfigError(NOT_HERE)


def figures(outcomes: Iterable[Outcome]) -> Figures:
    """Return the medians over the repeats of a variant."""
    many = list(outcomes)
    measured = ([getattr(one, name) for one in many if getattr(one, name) is not None] for name in Figures._fields)
    return Figures(*(median(values) if values else None for values in measured))


def _outcome(trial: Trial) -> Outcome:
    completion = trial.completion
    of_answer = perplexity(trial.steps)
    return Outcome(
        trial_id=trial.id,
        text=completion.text if completion else trial.steps.text,
        model_name=trial.model.name,
        quantisation=trial.model.quantisation,
        seed=trial.seed,
        num_generated=len(trial.steps),
        decode_per_s=trial.timings.decode_per_s,
        ttft_s=trial.timings.ttft_s if len(trial.steps) else None,
        mean_surprise_bits=math.log2(of_answer) if of_answer else None,
    )


def _plan_of(trials: Sequence[Trial]) -> ComparisonPlan:
    """Return the plan that would rerun these trials."""
    before = trials[0].draft.messages[:-1]
    is_chat = all(
        _last_question(trial.draft.messages) and trial.draft.messages[:-1] == before for trial in trials
    )  # fmt: skip
    prompts = [_last_question(trial.draft.messages) if is_chat else trial.draft.prompt for trial in trials]
    is_one = len(set(prompts)) == 1 and not variables(prompts[0])
    arms = (
        Arm(
            model=trial.model.path if trial.engine is None else "",  # an address of a record is not asked
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
    """Return the last message if it is the user's and all are texts that a plan can have, else an empty string."""
    are_texts = all(message.keys() == {"role", "content"} and message["role"] in ROLES for message in messages)
    return messages[-1]["content"] if messages and are_texts and messages[-1]["role"] == "user" else ""
