"""Watched words of a trial: their exact probability at each of its positions, computed with the loaded model.

One pass over the trial's own tokens gives words that are single tokens. A phrase takes forward passes at each position,
as its later tokens follow text that the trial does not have; those are short jobs, which reuse the text before them.
"""

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.errors import ConfigError, EngineError, JobTimeout
from engine.jobs import Job
from engine.protocol import Engine
from engine.results import Completion
from engine.specs import MAX_WATCHED, Origin, Sampling, TokenSets
from engine.step_parts import INSPECTED
from engine.steps import StepTable
from engine.tasks import Progress, Task
from engine.units import counted
from engine.validation import at_most
from engine.vocabulary import Vocabulary
from engine.watched_words import MAX_WORDS, Word, read_word
from engine.workbench.machine_lease import MachineLease
from engine.workbench.trial_manager import TrialManager
from engine.workbench.trials import Trial

KEPT_BYTES = 32 << 20
POLL_S = 0.1
AHEAD = 2
"""Jobs of phrases that are open at once, for each sequence."""
_GREEDY = Sampling(temperature=0)
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]


class Figures(NamedTuple):
    """Probability of a word at the n + 1 positions of a text of n tokens: in place of each, and after the last.

    logprob (n + 1,): nats, of exactly its tokens coming next; rank (n + 1,): of the best of its first tokens. NaN and 0
    where the model gives no distribution: at the first position, and where the context has no room. shift: largest
    difference, in nats, between the recorded log-probabilities of the text's own tokens and those of the pass that gave
    these figures; None where none were recorded.
    """

    logprob: Floats
    rank: Ints
    shift: float | None = None


class Line:
    """A word as asked for, and its figures once they are there. error: why there are none."""

    def __init__(self, typed: str, word: Word | None, figures: Figures | None, error: str = "") -> None:
        self.typed, self.word, self.figures, self.error = typed, word, figures, error


class Watching:
    """Words watched at one trial: lines that fill while the task runs. vocabulary: the texts of their tokens."""

    def __init__(self, lines: Sequence[Line], vocabulary: Vocabulary) -> None:
        self.lines, self.vocabulary = tuple(lines), vocabulary
        self.task: Task[None] | None = None

    @property
    def shift(self) -> float | None:
        """Largest shift of the figures that are there; None where it is not known."""
        shifts = [line.figures.shift for line in self.lines if line.figures is not None]
        return max((shift for shift in shifts if shift is not None), default=None)

    @property
    def is_over(self) -> bool:
        """True once no further figures come."""
        return self.task is None or not self.task.is_running

    @property
    def progress(self) -> Progress | None:
        """Progress of the task; None where none runs."""
        return None if self.task is None or self.is_over else self.task.progress

    @property
    def error(self) -> str:
        """Why lines are missing after the end; empty where none are, or where it was stopped."""
        failed = self.task is not None and self.task.state == "failed"
        return str(self.task.error) if failed and self.task is not None else ""

    def stop(self) -> None:
        """Stop computing; what is there stays."""
        if self.task is not None:
            self.task.stop()


class WordWatcher:
    """Computes watched words, and keeps the last ones. Any thread may call it."""

    def __init__(self, trials: TrialManager, machine: MachineLease) -> None:
        self._trials, self._machine = trials, machine
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, TokenSets], Figures] = OrderedDict()

    def watch(self, trial_id: str, typed: Sequence[str], phrases: Collection[str] = ()) -> Watching:
        """Begin to compute the words of a trial that has ended; those of several tokens only where they are among
        `phrases`. Of a running trial only the words' tokens are returned.

        Raises ConfigError where the trial is not there, has no tokens or another model, and MachineBusy. A word that
        cannot be watched has the reason in its line.
        """
        trial = self._trials.trial(trial_id)
        engine = self._trials.engine_of(trial)
        if trial.done() and not trial.prompt_ids:
            raise ConfigError("This trial has no tokens: it ended before it began.")
        lines = [self._line(engine, trial, one) for one in at_most(MAX_WORDS, "{} watched words", typed)]
        watching = Watching(lines, engine.vocabulary)
        wanted = [line for line in lines if _is_missing(line) and (not _passes(line) or line.typed in phrases)]
        if wanted and trial.done():
            task: Task[None] = Task("Watched words", lambda task: self._compute(task, engine, trial, wanted))
            watching.task = task
            task.start(self._machine.acquire("Watched words", "interactive"))
        return watching

    def _line(self, engine: Engine, trial: Trial, typed: str) -> Line:
        try:
            word = read_word(engine, typed)
        except EngineError as error:
            return Line(typed, None, None, str(error))
        if word.phrases and engine.capabilities.is_recurrent:
            reason = (
                "is several tokens, and this model is recurrent: it would read the whole text again at each position"
            )
            return Line(typed, word, None, f"This word {reason}. Watch a word that is one token.")
        with self._lock:
            return Line(typed, word, self._kept.get(_key(trial, word)))

    def _compute(self, task: Task[None], engine: Engine, trial: Trial, wanted: Sequence[Line]) -> None:
        words = [line.word for line in wanted if line.word is not None]
        run = _Run(task, engine, [*trial.prompt_ids, *trial.steps.ids], words)
        first = run.first_tokens()
        shift = _shift(trial, run.own_logprobs)
        for line, word in sorted(zip(wanted, words, strict=True), key=lambda pair: pair[1].passes):
            figures = run.figures(word, first)._replace(shift=shift)
            self._keep(_key(trial, word), figures)
            line.figures = figures

    def _keep(self, key: tuple[str, TokenSets], figures: Figures) -> None:
        with self._lock:
            self._kept[key] = figures
            while sum(one.logprob.nbytes + one.rank.nbytes for one in self._kept.values()) > KEPT_BYTES:
                self._kept.popitem(last=False)


class _Run:
    """Computation of some words over a text of token ids.

    own_logprobs (n,): log-probabilities of the text's own tokens, NaN for the first.
    """

    def __init__(self, task: Task[None], engine: Engine, ids: list[int], words: Sequence[Word]) -> None:
        self._task, self._engine, self._ids = task, engine, ids
        sets = dict.fromkeys(one for word in words for one in _first_sets(word))
        self._sets = list(sets)
        self._passes = [self._sets[at : at + MAX_WATCHED] for at in range(0, len(self._sets), MAX_WATCHED)]
        self._num_done, self._num_tokens = 0, len(ids) * (len(self._passes) + sum(word.passes for word in words))
        self.own_logprobs: Floats = np.zeros(0)

    def first_tokens(self) -> dict[tuple[int, ...], Figures]:
        """Return the figures of each set of first tokens: one pass over the text gives up to MAX_WATCHED of them."""
        found: dict[tuple[int, ...], Figures] = {}
        for sets in self._passes:
            done = self._pass(tuple(sets))
            logprob, rank = (np.concatenate(column) for column in zip(*_columns(done), strict=True))
            room = len(self._ids) + 1 - len(logprob)  # of a full context nothing is known behind the last token
            logprob = np.pad(logprob, ((0, room), (0, 0)), constant_values=math.nan)
            rank = np.pad(rank, ((0, room), (0, 0)))
            found |= {one: Figures(logprob[:, at], rank[:, at]) for at, one in enumerate(sets)}
            records = done.prompt_steps.records
            self.own_logprobs = np.where(records["flags"] & INSPECTED != 0, records["logprob"], math.nan)
        return found

    def _pass(self, sets: TokenSets) -> Completion:
        has_room = len(self._ids) <= self._engine.capabilities.n_ctx
        job = self._engine.submit(self._ids, _GREEDY, max_tokens=int(has_room), prompt_logprobs=True, watched=sets)
        before = self._num_done
        try:
            done = self._result(job, lambda: self._report(before + len(job.prompt_steps), "Reading the text once"))
        finally:
            job.cancel()
        self._num_done = before + len(self._ids)
        return done

    def figures(self, word: Word, first: dict[tuple[int, ...], Figures]) -> Figures:
        """Return the figures of a word, from those of its first tokens and of the tokens that follow them."""
        parts = [first[one] for one in _first_sets(word)]
        logprobs = [part.logprob for part in parts]
        for number, phrase in enumerate(word.phrases, len(parts) - len(word.phrases)):
            logprobs[number] = logprobs[number] + self._following(word.typed, phrase)
        with np.errstate(invalid="ignore"):  # NaN where one of them is NaN
            total = np.logaddexp.reduce(logprobs)
        return Figures(total, np.min([part.rank for part in parts], axis=0))

    def _following(self, typed: str, phrase: tuple[int, ...]) -> Floats:
        """Return the log-probability (n + 1,) that the rest of a phrase follows its first token at each position."""
        found = np.full(len(self._ids) + 1, math.nan)
        last = min(len(self._ids), self._engine.capabilities.n_ctx - len(phrase))
        most = AHEAD * self._engine.capabilities.num_sequences
        waiting: deque[tuple[int, Job]] = deque()
        try:
            # from the end: a text that goes on with the next tokens is in the KV cache then, and is cut
            for place in range(last, 0, -1):
                waiting.append((place, self._follow(place, phrase)))
                while len(waiting) > (most if place > 1 else 0):
                    at, job = waiting[0]
                    found[at] = self._result(job, self._task.check).steps.records["logprob"].sum()
                    waiting.popleft()
                    self._num_done += len(phrase) - 1
                    self._report(self._num_done, f"{typed}: {last - at + 1:,} of {counted(last, 'position')}")
        finally:
            for _, job in waiting:
                job.cancel()
        return found

    def _follow(self, place: int, phrase: tuple[int, ...]) -> Job:
        """Submit the text before a position with a phrase in its place, whose later tokens are forced steps."""
        num = len(phrase) - 1
        return self._engine.submit(
            [*self._ids[:place], *phrase], _GREEDY, forced=num, max_tokens=num, top_k=1, origin=Origin(lane="batch")
        )

    def _result(self, job: Job, look: Callable[[], object]) -> Completion:
        """Wait for a job; meanwhile call `look`, which raises Stopped where the task was stopped."""
        while True:
            try:
                return job.result(POLL_S)
            except JobTimeout:
                look()

    def _report(self, num_done: int, doing: str) -> None:
        self._task.update(min(num_done / max(self._num_tokens, 1), 1.0), doing)


def _first_sets(word: Word) -> TokenSets:
    """Return the sets of first tokens of a word: its single tokens together, and the first of each phrase."""
    singles = (word.single_ids,) if word.single_ids else ()
    return *singles, *((phrase[0],) for phrase in word.phrases)


def _columns(done: Completion) -> Iterator[tuple[Floats, Ints]]:
    """Yield log-probabilities and ranks of the watched sets: of the text's tokens, then of what follows them."""
    for table in (done.prompt_steps, done.steps):
        columns = table.watched_columns
        assert columns is not None
        yield columns.logprob, columns.rank


def _key(trial: Trial, word: Word) -> tuple[str, TokenSets]:
    return trial.id, tuple(sorted(variant.ids for variant in word.watched))


def _is_missing(line: Line) -> bool:
    return line.word is not None and line.figures is None and not line.error


def _passes(line: Line) -> int:
    return line.word.passes if line.word else 0


def _shift(trial: Trial, anew: Floats) -> float | None:
    """Return the largest difference between the recorded log-probabilities of the trial's tokens and new ones."""
    recorded = np.concatenate([_recorded(table) for table in (trial.prompt_steps, trial.steps)])
    moved = np.abs(recorded[: len(anew)] - anew[: len(recorded)])
    return float(np.nanmax(moved)) if np.isfinite(moved).any() else None


def _recorded(table: StepTable) -> Floats:
    records = table.records
    return np.where(records["flags"] & INSPECTED != 0, records["logprob"], math.nan)
