"""Differences of two models on a stored trial: its own model and another one, both given the stored tokens."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engine.bench.measurement.load_timeout import patience_s
from engine.comparing.model_diff import ModelDiff, vocabulary_difference
from engine.errors import ConfigError, EngineError, ModelError
from engine.files import check_room, scratch_folder
from engine.history import TrialRecord
from engine.llama.scoring import ScoredSteps, ScoringModel, row_bytes
from engine.models.details import readable
from engine.models.folder_specs import carried_over, folder_spec, is_by_transformers
from engine.models.gguf import ModelFile
from engine.models.memory import check_fits
from engine.models.reading import read_model
from engine.models.tokenizer import Tokenizer
from engine.settings import Settings
from engine.specs import PoolOptions, PoolSpec
from engine.step_parts import INSPECTED
from engine.steps import StepTable
from engine.tasks import Task, TaskRunner
from engine.units import quantity
from engine.vocabulary import Vocabulary
from engine.workbench.machine_lease import MachineLease
from engine.workbench.recorded_models import file_of
from engine.workbench.trial_records import record_of
from engine.workbench.trials import Trial

KEPT = 16
"""Number of differences that are held in memory."""
CANDIDATES = 10
"""Candidates of each model that are recorded with each token."""
LEAST_CTX = 16
SAME = "This would compare the model with itself: give another model file or another setting."


class Other(NamedTuple):
    """The other side: a model file, None for the trial's own, and parameters that differ from the trial's pool.

    Without a dtype, llama.cpp runs a GGUF file, also where transformers ran it in the trial.
    """

    model: Path | None = None
    settings: tuple[tuple[str, str | int | bool], ...] = ()


def is_same(trial: Trial | TrialRecord, other: Other) -> bool:
    """Return whether the other side is the trial's own. Of a GGUF file that ran in transformers it is llama.cpp."""
    return other == Other() and trial.pool.dtype is None


class Diffed(NamedTuple):
    """A difference and what was compared.

    moved: largest change of a log-probability in nats between the trial as it was recorded and its tokens scored
    again by the same model; None where none was recorded.
    """

    diff: ModelDiff
    file: ModelFile
    other_file: ModelFile
    spec: PoolSpec
    other_spec: PoolSpec
    moved: float | None


class DiffTask(Task[Diffed]):
    """Task that scores the tokens of a trial by its own model and by another one, one after the other.

    Raises ConfigError where there is nothing to compare.
    """

    def __init__(self, trial: TrialRecord, other: Other, settings: Settings) -> None:
        super().__init__(f"The comparison of {trial.id} with another model", lambda _task: self._diff())
        if is_same(trial, other):
            raise ConfigError(SAME)
        self.trial, self.other = trial, other
        self._settings = settings
        completion = trial.completion
        self._ids = (*completion.prompt_ids, *completion.ids)
        self._first = len(completion.prompt_ids) if completion.steps else 1
        if not 1 <= self._first < len(self._ids):
            raise ConfigError("This trial has no tokens to compare: a token needs at least one before it.")

    def _diff(self) -> Diffed:
        self.update(doing="Checking the model file", left_s=None)
        file = file_of(self.trial)
        if file.is_folder and self.other == Other():
            raise ConfigError(SAME)
        other_file = file if self.other.model is None else read_model(self.other.model)
        self._check_vocabulary(other_file)
        spec = replace(
            self.trial.pool, instances=1, parallel=1, n_ctx=max(len(self._ids), LEAST_CTX), n_batch=None,
            n_ubatch=self.trial.pool.resolved_n_ubatch,
        )  # fmt: skip
        other_spec = _other_spec(file, spec, other_file, self.other)
        num_bytes = (len(self._ids) - self._first) * row_bytes(len(self._vocabulary))
        try:
            with scratch_folder(self._settings.home, "logits") as folder:
                check_room(folder, num_bytes)
                rows = folder / "rows"
                ours = self._steps(file, spec, rows, 0.0)
                theirs = self._steps(other_file, other_spec, rows, 0.5)
        except OSError as error:
            raise ModelError(
                f"The logits of {len(self._ids) - self._first:,} tokens, {quantity(num_bytes, 'B')}, cannot be written "
                f"to {self._settings.home} ({error.strerror}). Make room there, or set LOGITBENCH_HOME."
            ) from error
        is_prompt = not self.trial.completion.steps
        diff = ModelDiff(ours.steps, theirs.steps, theirs.kl, self._ids, is_prompt)
        return Diffed(diff, file, other_file, spec, other_spec, _largest_change(self._recorded, ours.steps))

    @property
    def _recorded(self) -> StepTable:
        completion = self.trial.completion
        return completion.steps or completion.prompt_steps

    @property
    def _vocabulary(self) -> Vocabulary:
        return self.trial.completion.steps.vocabulary

    def _check_vocabulary(self, other: ModelFile) -> None:
        """Raise ConfigError unless every id is the same token in both models."""
        self.update(doing=f"Reading the vocabulary of {other.path.name}", left_s=None)
        tokenizer = Tokenizer(other.path)
        self.on_stop(tokenizer.close)
        tokenizer.close()
        difference = vocabulary_difference(self._vocabulary, tokenizer.vocabulary)
        if difference:
            raise ConfigError(
                f"{readable(other.path.name)} has another vocabulary than this trial's model, so their distributions "
                f"cannot be compared: {difference}."
            )

    def _steps(self, file: ModelFile, spec: PoolSpec, rows: Path, share: float) -> ScoredSteps:
        """Score the tokens by one model; the second one (share 0.5) is compared with the first. Raises Stopped."""
        check_fits(file, spec)
        self.update(share, f"Loading {readable(file.path.name)}")
        model = ScoringModel(file.path, spec, rows, compares=share > 0, num_candidates=CANDIDATES)
        self.on_stop(model.close)
        try:
            model.load(patience_s(file.size))
            return model.steps(self._ids, self._first, self._vocabulary, self._teller(file, share))
        except EngineError:
            self.check()
            raise
        finally:
            model.close()

    def _teller(self, file: ModelFile, share: float) -> Callable[[float], None]:
        return lambda done: self.update(share + done / 2, f"Scoring with {readable(file.path.name)}")


def _other_spec(file: ModelFile, spec: PoolSpec, other_file: ModelFile, other: Other) -> PoolSpec:
    """Return the parameters of the other side: as the trial's own, as far as it can have them.

    Raises ConfigError for settings that it cannot have.
    """
    given = PoolSpec.from_dict(dict(other.settings)).dtype
    spec = replace(carried_over(file, spec, other_file, given), **PoolOptions(**dict(other.settings)))  # type: ignore[typeddict-item]
    return folder_spec(other_file, spec) if is_by_transformers(other_file, spec) else spec


def _largest_change(recorded: StepTable, anew: StepTable) -> float | None:
    then = recorded.records[len(recorded) - len(anew) :]
    known = then["flags"] & INSPECTED != 0
    if not known.any():
        return None
    return float(np.abs(anew.records["logprob"] - then["logprob"])[known].max())


class DiffManager:
    """Runner of comparisons with other models, one at a time; holds the last ones. Any thread may call it."""

    def __init__(self, settings: Settings, machine: MachineLease) -> None:
        self._settings, self._machine = settings, machine
        self._runner = TaskRunner[DiffTask]()
        self._tasks: dict[tuple[str, Other], DiffTask] = {}

    @property
    def running(self) -> DiffTask | None:
        """The running comparison, or None."""
        return self._runner.running

    def of(self, trial_id: str, other: Other) -> DiffTask | None:
        """Return the last comparison of a trial with this, running or finished; None where there was none."""
        return self._tasks.get((trial_id, other))

    def start(self, trial: Trial, other: Other) -> DiffTask:
        """Compare in the background.

        Raises ConfigError where the trial has no result, there is nothing to compare, another comparison runs or the
        machine is in use; any other failure is the task's `error`.
        """
        if trial.completion is None:
            raise ConfigError("This trial has no result to compare: it is still running, or it failed.")
        task = DiffTask(record_of(trial), other, self._settings)
        self._runner.start(task, lambda: self._machine.acquire("A comparison with another model", "shared"))
        key = trial.id, other
        self._tasks.pop(key, None)
        self._tasks[key] = task
        while len(self._tasks) > KEPT:
            del self._tasks[next(iter(self._tasks))]
        return task

    def close(self) -> None:
        """Stop the running comparison and wait for it to end."""
        self._runner.close()
