"""Tokenizer manager: opens the tokenizer of one model without loading the model."""

import threading
from collections import OrderedDict
from pathlib import Path

from engine.errors import ModelError, PoolClosed
from engine.models.tokenizer import Tokenizer
from engine.vocabulary import Vocabulary
from engine.workbench.machine_lease import MachineLease

_NUM_VOCABULARIES = 4


class TokenizerManager:
    """Owner of one open tokenizer at a time, and of the vocabularies last read. Any thread may call it."""

    def __init__(self, machine: MachineLease) -> None:
        self._machine = machine
        self._lock = threading.Lock()
        self._held: tuple[Path, int, Tokenizer] | None = None
        self._vocabularies: OrderedDict[tuple[Path, int], Vocabulary] = OrderedDict()
        self._is_closed = False

    def of(self, path: Path) -> Tokenizer:
        """Return the tokenizer of a file; opening another or a changed file takes up to a second.

        Raises ConfigError while a measurement is running, ModelError, WorkerDied, PoolClosed after close().
        """
        with self._lock:
            changed_at = _changed_at(path)
            held = self._held
            if held is not None and held[:2] == (path, changed_at) and held[2].is_alive:
                return held[2]
            if self._is_closed:
                raise PoolClosed("The workbench has been closed: start it again.")
            with self._machine.acquire(f"Opening the tokenizer of {path.name}", "shared"):
                self._let_go()
                opened = Tokenizer(path)
                self._held = path, changed_at, opened
                return opened

    def vocabulary_of(self, path: Path) -> Vocabulary:
        """Return the vocabulary of a file; those of the last four files are kept. Raises what `of` raises."""
        key = path, _changed_at(path)
        with self._lock:
            known = self._vocabularies.pop(key, None)
        vocabulary = known or self.of(path).vocabulary
        with self._lock:
            self._vocabularies[key] = vocabulary
            while len(self._vocabularies) > _NUM_VOCABULARIES:
                self._vocabularies.popitem(last=False)
        return vocabulary

    def close(self) -> None:
        """End the tokenizer's process and open no more."""
        with self._lock:
            self._is_closed = True
            self._let_go()

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held[2].close()


def _changed_at(path: Path) -> int:
    """Return when a file was changed, in nanoseconds. Raises ModelError if it cannot be read."""
    try:
        return path.stat().st_mtime_ns
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}). It may have been removed.") from error
