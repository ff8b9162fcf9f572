"""The history behind the pages: opens it, takes in its inbox, and writes what a failing disk kept out of it."""

import threading
from collections.abc import Callable
from typing import Any

from engine.errors import HistoryError, HistoryLocked
from engine.history import INBOX, History, refusals, take_inbox
from engine.settings import Settings

LOOK_S = 5.0

Write = Callable[[History], Any]


class HistorySlot:
    """Owns the history. Any thread may call it; `close` lets go of the file.

    One that cannot be used stops nothing: `error` says why, and every LOOK_S seconds it is tried again, with whatever
    could not be written meanwhile. history: None where it could not be opened; on_opened: called when it is opened
    later than at the start.
    """

    def __init__(self, settings: Settings, on_opened: Callable[[], None]) -> None:
        self._settings, self._on_opened = settings, on_opened
        self.history: History | None = None
        self.error: HistoryError | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._missed: dict[str, Write] = {}
        try:
            self.history = History.open(settings.history)
        except HistoryError as error:
            self.failed(error)
        threading.Thread(target=self._look, name="logitbench-history", daemon=True).start()

    def failed(self, error: HistoryError) -> None:
        """Say why the history cannot be used."""
        self.error = error.bare()

    def worked(self) -> None:
        """Something was written: a disk that was full has room again."""
        self.error = None

    def write_later(self, id: str, write: Write) -> None:
        """Have `write` called once the history works again: until it raises no HistoryError.

        Of several with the same id only the last is called.
        """
        with self._lock:
            self._missed[id] = write

    def forget(self, id: str) -> None:
        """Do not write what was to be written later under this id."""
        with self._lock:
            self._missed.pop(id, None)

    def refusals(self) -> dict[str, str]:
        """Files of the inbox that could not be read and were set aside, each with the reason."""
        return refusals(self._settings.home / INBOX)

    def close(self, within_s: float) -> None:
        """Let go of the file once what is queued is written, after `within_s` seconds at most."""
        with self._lock:
            self._closed.set()
        if self.history is not None:
            self.history.close(within_s)

    def _look(self) -> None:
        said: HistoryError | None = None
        while not self._closed.wait(LOOK_S):
            try:
                if history := self._opened():
                    take_inbox(history, self._settings.home / INBOX)
                    self._catch_up(history)
                    if self.error is said:
                        self.worked()
            except HistoryError as error:
                self.failed(error)
                said = self.error

    def _opened(self) -> History | None:
        """The history; where another process had it at the start, it is opened once that process has ended.

        Raises HistoryError.
        """
        if self.history is None and isinstance(self.error, HistoryLocked):
            opened = History.open(self._settings.history)
            with self._lock:
                if self._closed.is_set():
                    opened.close()
                    return None
                self.history, self.error = opened, None
            self._on_opened()
        return self.history

    def _catch_up(self, history: History) -> None:
        """Write what was missed; what fails again waits for the next time, and the last failure is raised."""
        with self._lock:
            missed = list(self._missed.items())
        failure: HistoryError | None = None
        for id, write in missed:
            try:
                write(history)
            except HistoryError as error:
                failure = error
                continue
            self.worked()
            with self._lock:
                if self._missed.get(id) is write:
                    del self._missed[id]
        if failure is not None:
            raise failure.bare()
