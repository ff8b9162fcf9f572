"""Keeping of ended trials: each is written to the history at once, or once the history works again."""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from engine.errors import HistoryError
from engine.history import History, TrialLabel
from engine.workbench.history_manager import HistoryManager
from engine.workbench.semantic_index import SemanticIndex
from engine.workbench.trial_records import record_of
from engine.workbench.trials import LiveTrial
from engine.workbench.unsaved_calls import UnsavedCalls

log = logging.getLogger(__name__)


class TrialKeeping:
    """Writes ended trials to the history. Those that cannot be written wait in memory; of API calls, as many as there
    is room for.

    on_given_up: called with the id of a call for which there is no room.
    """

    def __init__(self, kept: HistoryManager, meaning: SemanticIndex, on_given_up: Callable[[str], None]) -> None:
        self._kept, self._meaning, self._on_given_up = kept, meaning, on_given_up
        self._unsaved, self._has_given_up = UnsavedCalls(), False

    def keep(self, trial: LiveTrial) -> None:
        """Submit an ended trial to the history; does not block."""
        history = self._kept.history
        if history is None:
            self.keep_later(trial)
            return
        try:
            if trial.label == TrialLabel.API:
                stored = history.record_call(partial(record_of, trial))
            else:
                stored = history.record(record_of(trial))
            stored.add_done_callback(lambda done: self._stored(trial, done))
        except HistoryError as error:
            self._kept.failed(error)
            self.keep_later(trial)

    def keep_later(self, trial: LiveTrial) -> None:
        """Write a trial once the history works again."""

        def keep(history: History) -> None:
            if not history.restore(trial.id):  # unless another owner of the history has stored it
                history.record(record_of(trial), is_urgent=True).result()
            trial.is_stored = True
            self._unsaved.remove(trial.id)
            self._meaning.wake()

        def handed_over() -> None:
            trial.is_stored = True
            self._unsaved.remove(trial.id)

        if trial.label != TrialLabel.API:
            self._kept.write_later(trial.id, keep, lambda: record_of(trial))
            return
        self._kept.write_later(trial.id, keep, lambda: record_of(trial), handed_over)
        for id in self._unsaved.add(trial):
            self._give_up(id)

    def forget(self, trial_id: str) -> None:
        """Write a trial no more."""
        self._kept.forget(trial_id)
        self._unsaved.remove(trial_id)

    def _stored(self, trial: LiveTrial, done: "Future[Any]") -> None:
        error = done.exception()
        trial.is_stored = error is None
        self._meaning.wake()
        if trial.is_stored:
            self._kept.worked()
        elif isinstance(error, HistoryError):
            self._kept.failed(error)
            self.keep_later(trial)
        else:
            log.error("The trial %s could not be stored", trial.id, exc_info=error)

    def _give_up(self, id: str) -> None:
        self._kept.forget(id)
        self._on_given_up(id)
        if not self._has_given_up:
            self._has_given_up = True
            log.warning("Calls of the API are given up, the oldest first: %s", self._kept.error)
