"""Trials of API calls: stored in groups, and deleted, oldest first, beyond a limit of the space that they take."""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from engine.errors import HistoryError
from engine.history.database_writer import Cursor, DatabaseWriter
from engine.history.trials import TrialLabel, TrialRecord

WITHIN_S = 0.1
"""Longest wait of a trial for others that are stored in the same transaction: 20 together take an eighth of the
processor time of 20 alone (1.2 ms a trial instead of 9)."""
MOST_WAITING = 256
DELETED_AT_ONCE = 256
MOST_DOOMED = 100_000
LOOKS = 20
"""How often the space is looked at while trials of the size of the limit come."""

_BYTES = """500 + strlen(prompt) + strlen(messages) + strlen(text) + strlen(sampling) + 24 * num_prompt
    + (num_generated + CASE WHEN request ->> '$.prompt_logprobs' = 'true' THEN num_prompt ELSE 0 END)
    * (30 + 10 * coalesce(TRY_CAST(request ->> '$.top_k' AS INTEGER), 0))"""
"""Bytes of a trial in the file. Measured: 450 without tokens, 17 for a token of a prompt without figures, 218 for one
with 20 candidates and 2,220 for one with 256."""
_UNMARKED = f"""label = '{TrialLabel.API}'
    AND id NOT IN (SELECT parent FROM trials WHERE parent IS NOT NULL)
    AND id NOT IN (SELECT id FROM marks
                   WHERE kind = 'trial' AND (is_starred OR is_archived OR note <> '' OR len(tags) > 0))"""
"""Trials that may be deleted: those with a mark, and those that others continue, stay and do not count."""
_DOOMED = f"""
    SELECT id FROM (
        SELECT id, created_at, sum({_BYTES}) OVER (ORDER BY created_at DESC, id DESC) AS num_bytes
        FROM trials WHERE {_UNMARKED}
    ) WHERE num_bytes > ? ORDER BY created_at, id LIMIT {MOST_DOOMED}"""

_log = logging.getLogger(__name__)
Insert = Callable[[Cursor, Sequence[TrialRecord]], int]


class _Waiting(NamedTuple):
    """A trial to be stored, made into its record by `make`, and the future of its caller."""

    make: Callable[[], TrialRecord]
    done: Future[None]


class ApiTrials:
    """Trials of API calls in a history file. Any thread may call it.

    insert: stores trials and returns their bytes in memory. most_bytes: the limit, None for none; what is marked does
    not count. Deletions run in pieces between other writes.
    """

    def __init__(self, file: DatabaseWriter, insert: Insert, most_bytes: int | None) -> None:
        self._file, self._insert, self._most_bytes = file, insert, most_bytes
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._num_added = 0
        self._doomed: list[str] = []

    def add(self, make: Callable[[], TrialRecord]) -> Future[None]:
        """Queue a trial for storage within 0.1 s; it is on disk when the future is done. Fails with HistoryError.

        make: returns its record, on the thread that stores it, so that whoever adds it does not wait for that.
        """
        one = _Waiting(make, Future())
        with self._lock:
            self._waiting.append(one)
            num_waiting = len(self._waiting)
        if num_waiting == 1:
            timer = threading.Timer(WITHIN_S, self.flush)
            timer.daemon = True
            timer.start()
        elif num_waiting >= MOST_WAITING:
            self.flush()
        return one.done

    def flush(self) -> None:
        """Queue the waiting trials for storage now: what is queued afterwards finds them stored."""
        with self._lock:  # until they are queued, so that another flush does not return before
            group, self._waiting = self._waiting, []
            if not group:
                return
            stored = self._queue(group)
        stored.add_done_callback(partial(self._stored, group))

    def count(self, num_bytes: int) -> None:
        """Count trials of that many bytes that were stored, and shrink where these come to a part of the limit."""
        if self._most_bytes is None:
            return
        with self._lock:
            self._num_added += num_bytes
            is_due = self._num_added * LOOKS > self._most_bytes
            if is_due:
                self._num_added = 0
        if is_due:
            self.shrink()

    def shrink(self) -> None:
        """Delete what is beyond the limit, oldest first, in the background."""
        if self._most_bytes is not None:
            try:
                self._file.write(self._delete_some).add_done_callback(self._deleted_some)
            except HistoryError:
                return  # closed

    def _queue(self, group: Sequence[_Waiting]) -> "Future[int]":
        """Queue trials for storage; the future has their bytes, and fails also where the file is closed."""
        try:
            return self._file.write(lambda cursor: self._insert(cursor, [one.make() for one in group]))
        except HistoryError as error:
            failed: Future[int] = Future()
            failed.set_exception(error)
            return failed

    def _stored(self, group: Sequence[_Waiting], stored: "Future[int]") -> None:
        error = stored.exception()
        if error is not None and len(group) > 1:
            for one in group:  # one of them may be at fault, which fails alone
                self._queue([one]).add_done_callback(partial(self._stored, [one]))
            return
        for one in group:
            if error is None:
                one.done.set_result(None)
            else:
                one.done.set_exception(error)
        if error is None:
            self.count(stored.result())

    def _delete_some(self, cursor: Cursor) -> bool:
        """Delete some of the oldest trials beyond the limit; return whether there are more."""
        if not self._doomed:
            rows = cursor.execute(_DOOMED, [self._most_bytes]).fetchall()
            self._doomed = [id for (id,) in rows]
        some, self._doomed = self._doomed[:DELETED_AT_ONCE], self._doomed[DELETED_AT_ONCE:]
        given = f"SELECT id FROM trials WHERE id IN (SELECT unnest(?::UUID[])) AND {_UNMARKED}"
        ids = [id for (id,) in cursor.execute(given, [some]).fetchall()]  # without those marked in the meantime
        if ids:
            _delete(cursor, ids)
        return bool(self._doomed)

    def _deleted_some(self, deleted: "Future[bool]") -> None:
        error = deleted.exception()
        if error is not None:
            _log.warning("Old trials of API calls could not be deleted: %s", error)
        elif deleted.result():
            self.shrink()


def _delete(cursor: Cursor, ids: Sequence[object]) -> None:
    chosen = "IN (SELECT unnest(?::UUID[]))"
    within = [min(map(str, ids)), max(map(str, ids)), ids]  # ids rise with time, so that most of `steps` is passed over
    cursor.execute(f"DELETE FROM steps WHERE trial_id BETWEEN ? AND ? AND trial_id {chosen}", within)
    cursor.execute(f"DELETE FROM vectors WHERE trial_id {chosen}", [ids])
    cursor.execute(f"DELETE FROM marks WHERE kind = 'trial' AND id {chosen}", [ids])
    cursor.execute(f"DELETE FROM trials WHERE id {chosen}", [ids])
