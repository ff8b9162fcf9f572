"""History manager: opens the history, imports its inbox, and retries writes that failed."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.errors import HistoryError, HistoryLocked
from engine.history import INBOX, History, Inbox, refusals
from engine.settings import Settings

LOOK_S = 5.0
log = logging.getLogger(__name__)

Write = Callable[[History], Any]


class HistoryManager:
    """Owner of the history. Any thread may call it; `close` releases the file.

    An unusable history stops nothing: `error` has the reason, and every LOOK_S seconds it is tried again, with the
    writes that failed in the meantime. history: None where it could not be opened. on_opened: called when it is opened
    later than at the start. stage: reads a file of the inbox, see `Inbox`.
    """

    def __init__(
        self, settings: Settings, on_opened: Callable[[], None], stage: Callable[[Path, Path], object]
    ) -> None:
        self._settings, self._on_opened = settings, on_opened
        self._inbox = Inbox(settings.home / INBOX, stage)
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
        """Record why the history cannot be used."""
        self.error = error.bare()

    def worked(self) -> None:
        """Clear the error after a successful write, as when a full disk has room again."""
        self.error = None

    def write_later(self, id: str, write: Write) -> None:
        """Queue `write` for when the history works again; it is retried until it raises no HistoryError.

        Of several writes with the same id only the last is called.
        """
        with self._lock:
            self._missed[id] = write

    def forget(self, id: str) -> None:
        """Drop the write queued under this id."""
        with self._lock:
            self._missed.pop(id, None)

    def refusals(self) -> dict[str, str]:
        """Return the files of the inbox that were unreadable and set aside, each with the reason."""
        return refusals(self._settings.home / INBOX)

    def close(self, within_s: float) -> None:
        """Release the file once queued rows are written, after `within_s` seconds at most."""
        with self._lock:
            self._closed.set()
        if self.history is not None:
            self.history.close(within_s)

    def _look(self) -> None:
        said: HistoryError | None = None
        while not self._closed.wait(LOOK_S):
            try:
                if history := self._opened():
                    self._catch_up(history)
                    self._inbox.take(history)
                    if self.error is said:
                        self.worked()
            except HistoryError as error:
                self.failed(error)
                said = self.error
            except Exception:  # this thread must survive: it also retries failed writes
                log.exception("the inbox could not be checked")

    def _opened(self) -> History | None:
        """Return the history; where another process owned it at the start, open it once that process has ended.

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
        """Retry the failed writes; those that fail again stay queued, and the last failure is raised."""
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
