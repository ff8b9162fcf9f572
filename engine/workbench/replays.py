"""Replays of stored trials: the same prompt ids, parameters and seed run again, compared token by token."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engine.backends.connecting import start_managed
from engine.backends.dialects import gives_ids
from engine.backends.managed_programs import ManagedServer
from engine.bench.measurement.load_timeout import LoadTimeout, patience_s
from engine.comparing.replay import Replay, Stretch, compared, drawn
from engine.errors import ConfigError, ModelError
from engine.history import TrialRecord
from engine.history.trials import versions
from engine.machine.cores import num_cores
from engine.models.gguf import ModelFile
from engine.opening import open_engine
from engine.protocol import Engine, OpenEngine
from engine.specs import PoolSpec, RequestOptions, Sampling
from engine.step_parts import FORCED
from engine.steps import StepTable
from engine.tasks import LEAST_SHARE, Task, TaskRunner
from engine.units import counted
from engine.workbench.machine_lease import MachineLease
from engine.workbench.model_manager import ModelManager
from engine.workbench.recorded_models import file_of, is_managed
from engine.workbench.trial_records import record_of
from engine.workbench.trials import Trial

KEPT = 16
"""Number of trials whose last replay is held in memory."""
RECOMPUTE_S = 600
CANDIDATES = 10
"""Candidates of the replay where the trial recorded none."""


class Replayed(NamedTuple):
    """A replay, the file that it ran, and what it does not repeat, each in a sentence."""

    replay: Replay
    model: Path
    remarks: tuple[str, ...]


class ReplayTask(Task[Replayed]):
    """Task that replays a trial.

    loaded: returns an engine that may run it, with the hash of its model, None for none: the trial's own model is then
    opened with its own parameters. model: where its file is now, None: to be found.
    """

    def __init__(
        self,
        trial: TrialRecord,
        *,
        model: Path | None = None,
        loaded: Callable[[], tuple[Engine, str] | None] = lambda: None,
        open_engine: OpenEngine = open_engine,
    ) -> None:
        super().__init__(f"The replay of {trial.id}", lambda _task: self._replay())
        self.trial = trial
        self._model, self._loaded, self._open_engine = model, loaded, open_engine

    def _replay(self) -> Replayed:
        self.update(doing="Checking the model file", left_s=None)
        by = self.trial.engine
        if by is not None and is_managed(self.trial) and not gives_ids(by.dialect):
            raise ModelError(
                f"This trial was answered by {by.name}, which takes and returns no token ids: whether its tokens "
                "are the same again cannot be checked. Run it again to compare the texts."
            )
        file = file_of(self.trial, self._model, may_be_managed=True)
        with self._engine(file) as engine:
            replay = self._run(engine)
        return Replayed(replay, file.path, tuple(_remarks(self.trial, replay)))

    @contextmanager
    def _engine(self, file: ModelFile) -> Iterator[Engine]:
        """Provide the loaded engine if it computes as the trial's did, else one that is closed at the end."""
        loaded, wanted = self._loaded(), self._spec()
        if loaded is not None and loaded[1] == self.trial.model.hash and self._is_alike(loaded[0], wanted):
            yield loaded[0]
            return
        with LoadTimeout(patience_s(file.size)) as timeout:
            self.on_stop(timeout.stop)
            engine = self._opened(file, wanted, timeout)
        with engine:
            yield engine

    def _opened(self, file: ModelFile, wanted: PoolSpec, timeout: LoadTimeout) -> Engine:
        """Open what answered the trial: a pool, or a server that was started here."""
        if is_managed(self.trial):
            self.update(doing=f"Starting llama-server with {file.path.name}", left_s=None)
            return start_managed(ManagedServer("llama-server", file.path, wanted), timeout.begins)
        return self._open_engine(
            str(file.path), wanted, on_opening=timeout.begins,
            on_progress=lambda share: self.report(0.0, f"Loading {file.path.name}, {share:.0%}", None),
        )  # fmt: skip

    def _is_alike(self, loaded: Engine, wanted: PoolSpec) -> bool:
        """Return whether the loaded engine is of the trial's kind, a pool or a server, and computes as it did."""
        can = loaded.capabilities
        return can.has_ids and can.is_exact is not is_managed(self.trial) and _computes_alike(loaded, wanted)

    def _spec(self) -> PoolSpec:
        """Return parameters for one sequence that computes as the trial's did, with the threads of most tokens."""
        pool, timings = self.trial.pool, self.trial.completion.timings
        return replace(
            pool, instances=1, parallel=1, n_batch=pool.resolved_n_batch, n_ubatch=pool.resolved_n_ubatch,
            threads=pool.threads or _available(timings.threads),
            threads_batch=pool.threads_batch or _available(timings.threads_batch),
        )  # fmt: skip

    def _run(self, engine: Engine) -> Replay:
        """Run each stretch of drawn tokens after the recorded tokens before it, up to the first difference."""
        completion, first = self.trial.completion, num_before(self.trial)
        if not completion.steps:
            return self._score(engine)
        found: list[tuple[Stretch, StepTable]] = []
        for stretch in drawn(completion.steps, first):
            table = self._stretch(engine, stretch)
            found.append((stretch, table))
            if table.ids != completion.ids[stretch.start : stretch.stop]:
                break
        return compared(completion.steps, found, first=first)

    def _stretch(self, engine: Engine, stretch: Stretch) -> StepTable:
        """Generate one stretch; ends at the first token that differs. Raises Stopped."""
        start, stop = stretch
        completion = self.trial.completion
        job = engine.submit(
            [*completion.prompt_ids, *completion.ids[:start]],
            replace(self.trial.sampling, seed=completion.seed),
            generated=start,
            **self._options(stop - start, is_scored=not start),
        )
        self.on_stop(job.cancel)
        total, began = len(completion.steps), 0.0
        for index, step in enumerate(job, start):
            began = began or time.monotonic()  # its prompt was computed first, which no other token waits for
            pace_s = (time.monotonic() - began) / max(index - start, 1)
            is_known = index - start >= LEAST_SHARE * total
            left_s = pace_s * (total - index - 1) if is_known else None
            self.update((index + 1) / total, f"Token {index + 1:,} of {total:,}", left_s)
            if step.id != completion.ids[index]:
                job.cancel()
        self.check()
        return job.result().steps

    def _score(self, engine: Engine) -> Replay:
        """Score the prompt again."""
        completion = self.trial.completion
        job = engine.submit(list(completion.prompt_ids), **self._options(0, is_scored=True))
        self.on_stop(job.cancel)
        self.update(doing=f"Scoring {counted(len(completion.prompt_ids), 'token')}", left_s=None)
        table = job.result().prompt_steps
        self.check()
        return compared(completion.prompt_steps, [(Stretch(0, len(table)), table)], is_prompt=True)

    def _options(self, max_tokens: int, *, is_scored: bool) -> RequestOptions:
        request = self.trial.request
        return RequestOptions(
            max_tokens=max_tokens,
            top_k=request.top_k or CANDIDATES,
            stop=request.stop,
            prompt_logprobs=request.prompt_logprobs and is_scored,
            reuse_prefix=False,
        )


def _available(threads: int | None) -> int | None:
    """Return a thread count that this machine has the cores for, else None."""
    return threads if threads is not None and threads <= num_cores() else None


def _computes_alike(loaded: Engine, wanted: PoolSpec) -> bool:
    """Return whether an engine is idle, computes the same logits and has room for as many tokens."""
    names = ("dtype", "type_k", "type_v", "flash_attn", "share_weights", "n_gpu_layers", "resolved_n_ubatch")
    is_alike = all(getattr(loaded.spec, name) == getattr(wanted, name) for name in names)
    needed = wanted.n_ctx if wanted.dtype else wanted.padded_n_ctx
    return is_alike and not loaded.num_open and loaded.capabilities.n_ctx >= needed


def num_before(trial: TrialRecord) -> int:
    """Return how many of the generated tokens come from the trial that this one continues or branches from."""
    completion = trial.completion
    return max(len(completion.steps) - completion.timings.num_generated, 0)


def _remarks(trial: TrialRecord, replay: Replay) -> Iterator[str]:
    """Yield what this replay of a trial does not repeat."""
    completion, first = trial.completion, num_before(trial)
    if first:
        origin = f"trial {trial.parent}" if trial.parent else "an earlier trial"
        yield f"The first {counted(first, 'token')} come from {origin} and were taken over: replay that one for them."
    num_forced = int((completion.steps.records["flags"][first:] & FORCED != 0).sum())
    if num_forced:
        yield f"{counted(num_forced, 'forced token')} taken over, not drawn."
    if completion.timings.num_cached:
        yield (
            f"Recorded with {counted(completion.timings.num_cached, 'token')} of a cached prefix, which moves logits; "
            "the replay computes all tokens."
        )
    if trial.node:
        yield f"Recorded on the node {trial.node}, replayed on this machine, whose processor may round differently."
    by = trial.engine
    if by is not None and is_managed(trial) and not replay.is_identical:
        yield f"The build of {by.name} that answered is not recorded: another one may compute other logits."
    now = versions(trial.pool, trial.engine)
    for name, version in trial.versions.items():
        if name != "logitbench" and now.get(name, version) != version:
            yield f"Recorded with {name} {version}, replayed with {now[name]}."


class Shift(NamedTuple):
    """Absolute change of log-probabilities, in nats, when the same tokens are recomputed without prefix reuse."""

    largest: float
    p99: float
    num_tokens: int


class ReplayManager:
    """Runner of replays, one at a time; holds the last one of each trial. Any thread may call it."""

    def __init__(self, model_manager: ModelManager, machine: MachineLease, open_engine: OpenEngine) -> None:
        self._model_manager, self._machine, self._open_engine = model_manager, machine, open_engine
        self._runner = TaskRunner[ReplayTask]()
        self._tasks: dict[str, ReplayTask] = {}

    @property
    def running(self) -> ReplayTask | None:
        """The running replay, or None."""
        return self._runner.running

    def of(self, trial_id: str) -> ReplayTask | None:
        """Return the last replay of this trial, running or finished; None where there was none."""
        return self._tasks.get(trial_id)

    def start(self, trial: Trial) -> ReplayTask:
        """Replay a trial in the background.

        Raises ConfigError where it has no result, another replay runs or the machine is in use; any other failure is
        the task's `error`.
        """
        if trial.completion is None:
            raise ConfigError("This trial has no result to replay: it is still running, or it failed.")
        task = ReplayTask(record_of(trial), loaded=self._loaded, open_engine=self._open_engine)
        self._runner.start(task, lambda: self._machine.acquire("A replay", "interactive"))
        self._tasks.pop(trial.id, None)
        self._tasks[trial.id] = task
        while len(self._tasks) > KEPT:
            del self._tasks[next(iter(self._tasks))]
        return task

    def measure_shift(self, engine: Engine, trial: Trial) -> Shift:
        """Recompute the tokens of a trial of this engine's model without prefix reuse; waits for the result.

        Raises EngineError where that cannot run.
        """
        ids = [*trial.prompt_ids, *trial.steps.ids]
        with self._machine.acquire("A recomputed trial", "interactive"):
            job = engine.submit(ids, Sampling(), max_tokens=0, top_k=1, prompt_logprobs=True, reuse_prefix=False)
            anew = job.result(timeout=RECOMPUTE_S).prompt_steps.records["logprob"][len(trial.prompt_ids) :]
        moved = np.abs(anew - trial.steps.records["logprob"][: len(anew)])
        return Shift(float(moved.max()), float(np.percentile(moved, 99)), len(moved))

    def close(self) -> None:
        """Stop the running replay and wait for it to end."""
        self._runner.close()

    def _loaded(self) -> tuple[Engine, str] | None:
        state = self._model_manager.state
        return (state.engine, state.identity.hash) if state.engine is not None and state.identity is not None else None
