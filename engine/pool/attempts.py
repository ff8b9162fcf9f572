"""Attempts to start one worker: whether another follows a failed one, and the pause before it."""

import logging
import time

from engine.errors import EngineError, PoolClosed
from engine.pool.places import NotNow, Places

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0


class Attempts:
    """Attempts to start a worker in its place, or the replacement of one that ran.

    A first start is tried again only where its node is not there, for `patience_s` of the places. A replacement is
    tried again after any error, as long as other workers of the pool run; without any, for `patience_s`. Where that is
    0, as on this machine, there is one attempt.
    """

    def __init__(self, places: Places, index: int, *, is_replacement: bool) -> None:
        self._places, self.index, self._is_replacement = places, index, is_replacement
        self._since: float | None = None
        self._pause_s = _FIRST_PAUSE_S
        self.num_failed = 0

    def failed(self, failure: EngineError | NotNow, *, is_node_lost: bool, runs_others: bool) -> None:
        """Count a failed attempt. Raises its error if no other follows.

        is_node_lost: it ended with its node. runs_others: other workers take jobs meanwhile.
        """
        is_absent = is_node_lost or isinstance(failure, NotNow)
        error = failure.error if isinstance(failure, NotNow) else failure
        if not self._places.patience_s or isinstance(error, PoolClosed) or not (is_absent or self._is_replacement):
            raise error
        now = time.monotonic()
        if self._since is None or (runs_others and self._is_replacement):
            self._since = now
        elif now - self._since > self._places.patience_s:
            raise error
        if not self.num_failed:
            _log.warning("worker %d could not be started and is tried again: %s", self.index, error)
        self.num_failed += 1
        self._pause_s = _FIRST_PAUSE_S if is_absent else min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def pause(self) -> None:
        """Wait before the next attempt, less long where a node comes or goes meanwhile."""
        self._places.wait(self._pause_s)
