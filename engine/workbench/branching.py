"""Branches of a trial: other text at any token, samples from there, and the family of trials as a tree."""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from engine.comparing.branch_tree import TokenPath
from engine.errors import ConfigError, EngineError
from engine.history import TrialLabel, families
from engine.protocol import Engine, continuation_ids
from engine.step_parts import FORCED
from engine.workbench.history_manager import HistoryManager
from engine.workbench.trial_manager import TrialManager
from engine.workbench.trials import LiveTrial, Trial

MOST_SAMPLES = 64
PATHS_KEPT = 4000


class Relative(NamedTuple):
    """Trial of a family: name and star that people gave it, and its tokens so far."""

    id: str
    created_at: datetime
    label: str
    name: str
    is_starred: bool
    is_running: bool
    path: TokenPath


class Branching:
    """Starter of branches, and reader of the families that they make. Any thread may call it."""

    def __init__(self, trials: TrialManager, kept: HistoryManager) -> None:
        self._trials, self._kept = trials, kept
        self._lock = threading.Lock()
        self._paths: OrderedDict[str, TokenPath] = OrderedDict()
        self._others: OrderedDict[str, int | None] = OrderedDict()

    def with_text(self, trial: Trial, step: int, text: str) -> LiveTrial:
        """Start a branch that has `text` in place of the tokens from `step` on.

        Raises ConfigError where the text is empty, and as `TrialManager.branch`.
        """
        ids = continuation_ids(self._trials.engine_of(trial), text)
        if not ids:
            raise ConfigError("The text is empty: type what comes instead.")
        return self._trials.branch(trial, step, ids)

    def sample(self, trial: Trial, step: int, num: int) -> list[LiveTrial]:
        """Start `num` trials that go on from the first `step` tokens of `trial`, each with a seed of its own.

        Raises ConfigError for a number that is not 1 to MOST_SAMPLES, and as `TrialManager.branch`.
        """
        if not 1 <= num <= MOST_SAMPLES:
            raise ConfigError(f"{num:,} samples: from 1 to {MOST_SAMPLES} can be started at once")
        return [self._trials.branch(trial, step, (), is_drawn_anew=True, label=TrialLabel.SAMPLE) for _ in range(num)]

    def first_other_token(self, trial: Trial) -> int | None:
        """Return the first generated token of an ended trial that the tokenizer would not choose for the same text.

        Text that is copied and run again has other tokens from there on. None where all agree, or the model of `trial`
        is not loaded.
        """
        with self._lock:
            if trial.id in self._others:
                return self._others[trial.id]
        try:
            found = first_other_token(self._trials.engine_of(trial), trial)
        except EngineError:  # another model, or one that has just been closed
            return None
        with self._lock:
            self._others[trial.id] = found
            while len(self._others) > PATHS_KEPT:
                self._others.popitem(last=False)
        return found

    def family(self, trial: Trial) -> list[Relative]:
        """Return the trials with the prompt of `trial` that come from it or from which it comes, the oldest first.

        Raises HistoryError where the history cannot be read.
        """
        stored = self._stored_family(trial)
        live = self._live_family(trial, {one.id for one in stored})
        self._read_paths([one.id for one in stored if one.id not in live])
        found = [
            Relative(one.id, one.created_at, one.label, one.note, one.is_starred, False, self._path(one.id))
            for one in stored
            if one.id not in live
        ]
        marks = {one.id: one for one in stored}
        for id, one in live.items():
            note, is_starred = (marks[id].note, marks[id].is_starred) if id in marks else ("", False)
            found.append(Relative(id, one.created_at, one.label, note, is_starred, not one.done(), _path_of(one)))
        return sorted(found, key=lambda one: (one.created_at, one.id))

    def _stored_family(self, trial: Trial) -> list[families.Relative]:
        """Return the stored part of the family, found by the nearest ancestor that is stored."""
        history, parents = self._kept.history, {one.id: one.parent for one in self._trials.in_memory()}
        id: str | None = trial.id
        parents.setdefault(trial.id, trial.parent)
        while history and id:
            if found := history.family(id):
                return found
            id = parents.pop(id, None)
        return []

    def _live_family(self, trial: Trial, known: set[str]) -> dict[str, Trial]:
        """Return the trials in memory that are linked to `trial` or to those that are `known`."""
        others = [one for one in self._trials.in_memory() if one.prompt_ids == trial.prompt_ids]
        family: dict[str, Trial] = {} if trial.id in known and trial.done() else {trial.id: trial}
        linked = known | {trial.id}
        has_grown = True
        while has_grown:
            new = [one for one in others if one.id not in family and _is_linked(one, linked, family.values())]
            family |= {one.id: one for one in new}
            linked |= family.keys()
            has_grown = bool(new)
        return family

    def _read_paths(self, ids: list[str]) -> None:
        with self._lock:
            missing = [id for id in ids if id not in self._paths]
        history = self._kept.history
        read = history.paths(missing) if missing and history else {}
        with self._lock:
            self._paths |= read
            while len(self._paths) > PATHS_KEPT:
                self._paths.popitem(last=False)

    def _path(self, id: str) -> TokenPath:
        with self._lock:
            return self._paths.get(id) or TokenPath.empty(id)


def _is_linked(one: Trial, linked: set[str], family: Iterable[Trial]) -> bool:
    return one.id in linked or one.parent in linked or any(other.parent == one.id for other in family)


def _path_of(trial: Trial) -> TokenPath:
    records = trial.steps.records
    return TokenPath(trial.id, records["id"].copy(), records["logprob"].copy(), records["flags"] & FORCED != 0)


def first_other_token(engine: Engine, trial: Trial) -> int | None:
    """Return the first generated token that the tokenizer would not choose for the same text; None where all agree."""
    vocabulary, prompt = trial.steps.vocabulary, list(trial.prompt_ids)
    ids = [token for token in trial.steps.ids if not vocabulary.is_control(token)]
    if vocabulary.add_bos and prompt[:1] == [vocabulary.bos]:
        del prompt[0]
    if any(map(vocabulary.is_control, prompt)):  # a rendered chat, whose control tokens are no text
        prompt = []
    given = [*prompt, *ids]
    anew = continuation_ids(engine, vocabulary.join(given).decode("utf-8", "replace"))
    num_alike = next(
        (at for at, (one, other) in enumerate(zip(given, anew, strict=False)) if one != other),
        min(len(given), len(anew)),
    )
    return max(num_alike - len(prompt), 0) if num_alike < len(given) else None
