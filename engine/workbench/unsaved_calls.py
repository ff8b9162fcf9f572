"""Unsaved calls: trials of API calls that wait in memory for a history that can be used, within a bound."""

import threading

from engine.workbench.trials import LiveTrial

MOST_BYTES = 256 << 20
"""Bytes of all unsaved calls together; beyond them the oldest are given up."""
CALL_BYTES, TOKEN_BYTES = 8_000, 300
"""Bytes of a call without its tokens, and of a token with 20 candidates."""


class UnsavedCalls:
    """Trials in the order in which they came. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._num_bytes = 0

    def add(self, trial: LiveTrial) -> list[str]:
        """Add an ended trial; return the ids of those that are given up for it, the oldest first."""
        num_tokens = len(trial.prompt_ids) + len(trial.steps)
        size = CALL_BYTES + len(trial.draft.prompt) + TOKEN_BYTES * num_tokens
        with self._lock:
            self._num_bytes += size - self._sizes.pop(trial.id, 0)
            self._sizes[trial.id] = size
            given_up = []
            while self._num_bytes > MOST_BYTES and len(self._sizes) > 1:
                oldest = next(iter(self._sizes))
                self._num_bytes -= self._sizes.pop(oldest)
                given_up.append(oldest)
            return given_up

    def remove(self, id: str) -> None:
        """Remove a trial that is stored, or deleted."""
        with self._lock:
            self._num_bytes -= self._sizes.pop(id, 0)
