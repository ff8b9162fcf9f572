"""Probable manager: finds the most probable continuations from a token of a trial, one search at a time."""

from concurrent.futures import FIRST_COMPLETED, wait
from typing import NamedTuple

from engine.comparing.probable import Candidates, Continuation, ProbableSearch
from engine.errors import ConfigError
from engine.jobs import Job
from engine.protocol import Engine
from engine.specs import Sampling
from engine.tasks import Task, TaskRunner
from engine.units import counted
from engine.workbench.machine_lease import MachineLease
from engine.workbench.trial_manager import TrialManager
from engine.workbench.trials import Trial

NUM, DEPTH = 20, 6
MOST_DEPTH, MOST_NUM = 64, 500
NUM_CANDIDATES = 256
POLL_S = 0.2


class Probable(NamedTuple):
    """Result: the continuations, most probable first. is_cut_short: the search reached its limit before it had found
    all that was asked for; then the last are the most probable that it had seen."""

    found: tuple[Continuation, ...]
    is_cut_short: bool


class ProbableTask(Task[Probable]):
    """Search from the tokens before `step` of the trial `trial_id`."""

    def __init__(self, engine: Engine, trial: Trial, step: int, search: ProbableSearch) -> None:
        super().__init__("Most probable continuations", self._find)
        self.trial_id, self.step = trial.id, step
        self._engine, self._search = engine, search
        self._before = [*trial.prompt_ids, *trial.steps.ids[:step]]

    def _find(self, _task: Task[Probable]) -> Probable:
        search, awaited = self._search, dict[Job, tuple[int, ...]]()
        at_once = 2 * self._engine.capabilities.num_sequences
        try:
            while True:
                while len(awaited) < at_once and (prefix := search.next_prefix()) is not None:
                    awaited[self._ask(prefix)] = prefix
                if not awaited:
                    break
                wait(awaited, POLL_S, FIRST_COMPLETED)
                for job in [one for one in awaited if one.done()]:
                    search.expand(awaited.pop(job), self._candidates(job))
                share = max(len(search.found) / search.num, search.num_asked / search.most_expanded)
                self.update(share, f"{counted(search.num_asked, 'distribution')} looked at")
        finally:
            for job in awaited:
                job.cancel()
        return Probable(tuple(search.best()), search.is_cut_short)

    def _ask(self, prefix: tuple[int, ...]) -> Job:
        ids = [*self._before, *prefix]
        return self._engine.submit(ids, Sampling(temperature=0.0), max_tokens=1, top_k=NUM_CANDIDATES)

    def _candidates(self, job: Job) -> Candidates:
        top = job.result().steps[0].top_logprobs
        is_end = self._engine.vocabulary.is_end
        return Candidates([id for id, _ in top], [logprob for _, logprob in top], [is_end(id) for id, _ in top])


class ProbableManager(TaskRunner[ProbableTask]):
    """Runner of searches; each result is shown until the next search, or until it is dismissed."""

    def __init__(self, trials: TrialManager, machine: MachineLease) -> None:
        super().__init__()
        self._trials, self._machine = trials, machine

    def find(self, trial: Trial, step: int, *, num: int = NUM, depth: int = DEPTH, mass: float = 1.0) -> ProbableTask:
        """Search for the most probable continuations in place of the tokens of `trial` from `step` on.

        num, depth, mass: see ProbableSearch. Raises ConfigError for numbers out of range, where another search or a
        measurement runs, and where the model of `trial` is not loaded.
        """
        if not 0 <= step <= len(trial.steps):
            raise ConfigError(f"there is no token {step + 1:,}: this trial has {len(trial.steps):,}")
        if not (1 <= num <= MOST_NUM and 1 <= depth <= MOST_DEPTH and 0 < mass <= 1):
            raise ConfigError(
                f"Up to {MOST_NUM} continuations of up to {MOST_DEPTH} tokens can be searched for, or a probability of "
                "up to 100 %."
            )
        task = ProbableTask(self._trials.engine_of(trial), trial, step, ProbableSearch(num, depth, mass=mass))
        return self.start(task, lambda: self._machine.acquire(task.name, "interactive"))
