"""Queue of texts for the workers: bounded in tokens, jobs served round-robin so that short queries are not delayed."""

import threading
from collections import deque

from engine.delivery import check_may_wait
from engine.embedding.job import EmbedJob, Piece
from engine.errors import PoolClosed, QueueFull

MOST_TOKENS = 4_000_000
"""Maximum tokens in the queue, estimated from text lengths: some 16 MB of text, minutes to hours of work."""


class TextQueue:
    """Queue of the pieces of jobs. All methods may be called from any thread."""

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self._most = most_tokens
        self._changed = threading.Condition()
        self._jobs: deque[tuple[EmbedJob, deque[Piece]]] = deque()
        self._closed_by: PoolClosed | None = None

    @property
    def num_tokens(self) -> int:
        """Estimated tokens in the queue."""
        with self._changed:
            return sum(piece.size for _job, pieces in self._jobs for piece in pieces)

    def put(self, job: EmbedJob, pieces: list[Piece], *, is_patient: bool) -> None:
        """Add a job. Where there is no room, wait if `is_patient`; an empty queue accepts a job of any size.

        Raises QueueFull, PoolClosed.
        """
        size = sum(piece.size for piece in pieces)
        with self._changed:
            while self._closed_by is None and self._jobs and self.num_tokens + size > self._most:
                if not is_patient:
                    raise QueueFull(
                        f"the queue is full, about {self.num_tokens:,} of {self._most:,} tokens are waiting: "
                        "wait, then try again"
                    )
                check_may_wait()
                self._changed.wait()
            if self._closed_by is not None:
                raise PoolClosed("this pool is closed: open another") from self._closed_by.bare()
            job.begin(pieces)
            if pieces:
                self._jobs.append((job, deque(pieces)))
                self._changed.notify_all()

    def put_back(self, piece: Piece) -> None:
        """Requeue at the front a piece whose worker ended; in a closed queue its job fails."""
        with self._changed:
            error = self._closed_by
            if error is None:
                self._jobs.appendleft((piece.job, deque([piece])))
                self._changed.notify_all()
        if error is not None:
            piece.job.fail(error)

    def take(self) -> Piece | None:
        """Wait for the next piece; return None once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed_by is not None)
            if self._closed_by is not None:
                return None
            job, pieces = self._jobs.popleft()
            piece = pieces.popleft()
            if pieces:
                self._jobs.append((job, pieces))
            self._changed.notify_all()
            return piece

    def remove(self, job: EmbedJob) -> None:
        """Remove the queued pieces of a job."""
        with self._changed:
            self._jobs = deque(entry for entry in self._jobs if entry[0] is not job)
            self._changed.notify_all()

    def close(self, error: PoolClosed) -> None:
        """Accept no more jobs; queued jobs fail with `error`."""
        with self._changed:
            if self._closed_by is not None:
                return
            self._closed_by = error.bare()
            waiting = [job for job, _pieces in self._jobs]
            self._changed.notify_all()
        for job in waiting:
            job.fail(error)
