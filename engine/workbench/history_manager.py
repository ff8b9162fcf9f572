"""History manager: opens the history, imports its inbox, retries writes that failed, hands over to another owner."""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from engine.comparing.arms import ComparisonRecord
from engine.errors import HistoryError, HistoryLocked
from engine.history import INBOX, History, Inbox, TrialRecord, refusals, write_inbox
from engine.runs import RunRecord
from engine.settings import Settings

LOOK_S = 5.0
log = logging.getLogger(__name__)

Write = Callable[[History], Any]
Read = Callable[[], TrialRecord | RunRecord | ComparisonRecord]


class _Missed(NamedTuple):
    """A write for when the history works; `read` returns what it stores, None where that was handed over already.

    on_handed_over: called when it is handed over, instead of keeping the write. run_tags: of the run handed over.
    """

    write: Write
    read: Read | None
    on_handed_over: Callable[[], object] | None = None
    run_tags: Sequence[str] = ()


class HistoryManager:
    """Owner of the history. Any thread may call it; `close` releases the file.

    An unusable history stops nothing: `error` has the reason, and every LOOK_S seconds it is tried again, with the
    writes that failed in the meantime. While another process owns it, what is finished is handed over to that one
    through its inbox. history: None where it could not be opened. on_opened: called when it is opened later than at
    the start. stage: reads a file of the inbox, see `Inbox`.
    """

    def __init__(
        self, settings: Settings, on_opened: Callable[[], None], stage: Callable[[Path, Path], object]
    ) -> None:
        self._settings, self._on_opened = settings, on_opened
        self._inbox = Inbox(settings.home / INBOX, stage)
        self.history: History | None = None
        self.error: HistoryError | None = None
        self._lock = threading.Lock()
        self._settling = threading.Lock()
        self._opening = threading.Lock()
        self._wakes = threading.Event()
        self._is_closed = False
        self._missed: dict[str, _Missed] = {}
        try:
            self.history = self._open()
        except HistoryError as error:
            self.failed(error)
        threading.Thread(target=self._look, name="logitbench-history", daemon=True).start()

    def _open(self) -> History:
        return History.open(self._settings.history, most_api_bytes=self._settings.api_history_mb * 1_000_000)

    @property
    def keeps_calls(self) -> bool:
        """Whether trials of API calls are stored at all."""
        return self._settings.api_history_mb > 0

    def failed(self, error: HistoryError) -> None:
        """Record why the history cannot be used."""
        self.error = error.bare()

    def worked(self) -> None:
        """Clear the error after a successful write, as when a full disk has room again."""
        self.error = None

    @property
    def is_elsewhere(self) -> bool:
        """True while another process owns the history."""
        return self.history is None and isinstance(self.error, HistoryLocked)

    def write_later(
        self,
        id: str,
        write: Write,
        read: Read | None = None,
        on_handed_over: Callable[[], object] | None = None,
        *,
        run_tags: Sequence[str] = (),
    ) -> None:
        """Queue `write` for when the history works again; it is retried until it raises no HistoryError.

        Of several writes with the same id only the last is called. read: returns the trial, run or comparison that
        `write` stores, to be handed over while another process owns the history; `write` must then tolerate that it is
        stored already. on_handed_over: called then, and nothing of it is kept any longer. run_tags: tags that are
        handed over with a run.
        """
        with self._lock:
            self._missed[id] = _Missed(write, read, on_handed_over, run_tags)
        self._wakes.set()

    def forget(self, id: str) -> None:
        """Drop the write queued under this id."""
        with self._lock:
            self._missed.pop(id, None)

    def is_handed_over(self, id: str) -> bool:
        """Return whether what is to be stored under this id was given to the owner of the history."""
        with self._lock:
            missed = self._missed.get(id)
        return missed is not None and missed.read is None

    def refusals(self) -> dict[str, str]:
        """Return the files of the inbox that were unreadable and set aside, each with the reason."""
        return refusals(self._settings.home / INBOX)

    def close(self, within_s: float) -> None:
        """Release the file once queued rows are written, after `within_s` seconds at most.

        What could not be stored is left in the inbox, from which the next owner imports it.
        """
        with self._lock:
            self._is_closed = True
        self._wakes.set()
        if self._opening.acquire(timeout=within_s):  # a file that is being opened is closed again first
            self._opening.release()
        history = self.history
        if history is not None:
            with suppress(HistoryError):
                self._catch_up(history)
        self._hand_over()
        if history is not None:
            history.close(within_s)

    def _look(self) -> None:
        said: HistoryError | None = None
        while True:
            self._wakes.wait(LOOK_S)
            self._wakes.clear()
            if self._is_closed:
                return
            try:
                if history := self._opened():
                    history.file.check_place()
                    self._catch_up(history)
                    self._inbox.take(history)
                    if self.error is said:
                        self.worked()
            except HistoryError as error:
                self.failed(error)
                said = self.error
                if self.is_elsewhere:
                    self._hand_over()
            except Exception:  # this thread must survive: it also retries failed writes
                log.exception("the inbox could not be checked")

    def _opened(self) -> History | None:
        """Return the history; one that could not be opened at the start is opened once that is possible.

        Raises HistoryError.
        """
        if self.history is None:
            with self._opening:
                opened = self._open()
                with self._lock:
                    if not self._is_closed:
                        self.history, self.error = opened, None
                if self.history is None:
                    opened.close()
                    return None
            self._on_opened()
        return self.history

    def _hand_over(self) -> None:
        """Write everything missed to the inbox; what cannot be written is tried again later."""
        with self._settling:
            with self._lock:
                missed = [(id, one) for id, one in self._missed.items() if one.read is not None]
            for id, one in missed:
                assert one.read is not None
                try:
                    write_inbox(self._settings.home / INBOX, one.read(), run_tags=one.run_tags)
                except HistoryError as error:
                    log.warning("%s", error)
                    continue
                with self._lock:
                    if self._missed.get(id) is not one:
                        continue
                    if one.on_handed_over is None:
                        self._missed[id] = one._replace(read=None)
                    else:
                        del self._missed[id]
                if one.on_handed_over is not None:
                    one.on_handed_over()

    def _catch_up(self, history: History) -> None:
        """Retry the failed writes; those that fail again stay queued, and the last failure is raised."""
        failure: HistoryError | None = None
        with self._settling:
            with self._lock:
                missed = list(self._missed.items())
            for id, one in missed:
                try:
                    one.write(history)
                except HistoryError as error:
                    failure = error
                    continue
                self.worked()
                with self._lock:
                    if self._missed.get(id) is one:
                        del self._missed[id]
        if failure is not None:
            raise failure.bare()
