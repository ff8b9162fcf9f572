"""Worker group of one pool: each worker has a thread that feeds it; dead ones are replaced, all are ended together."""

import math
import threading
from typing import NamedTuple

import psutil

from engine.delivery import listening
from engine.embedding import messages as m
from engine.embedding.job import Piece
from engine.embedding.program import Link, OnOpening, Program
from engine.embedding.text_queue import TextQueue
from engine.errors import EngineError, PoolClosed, WorkerDied

CLOSED = "the pool was closed while this job was open"


class ProcessFigures(NamedTuple):
    """Figures of one process so far. pss_bytes counts 1/n of pages shared by n processes; NaN where not reported.

    private_bytes: pages not shared with others. cpu_s: processor seconds; compute_s: seconds from texts to vectors.
    """

    pid: int
    pss_bytes: float
    private_bytes: float
    cpu_s: float
    compute_s: float = 0.0
    num_texts: int = 0
    num_tokens: int = 0


class WorkerFigures(NamedTuple):
    """Figures of the fork server, which holds what its workers share and computes nothing, and of the workers."""

    program: ProcessFigures
    workers: list[ProcessFigures]

    @property
    def pss_bytes(self) -> float:
        """Memory of all processes, shared pages counted once."""
        return sum(process.pss_bytes for process in (self.program, *self.workers))


class EmbeddingWorkers:
    """Group of `size` workers fed from `queue`. The constructor returns when all are ready; raises as Program does."""

    def __init__(
        self, load: m.LoadEmbeddingModel, size: int, queue: TextQueue, on_opening: OnOpening | None = None
    ) -> None:
        self._load, self._queue = load, queue
        self._program = Program(load, on_opening)
        self.loaded = self._program.loaded
        self._lock = threading.Lock()
        self._is_closed = False
        try:
            self._links = [self._program.part() for _ in range(size)]
        except EngineError:
            self._program.close()
            raise
        for index in range(size):
            threading.Thread(target=self._drive, args=(index,), name="logitbench-embedding", daemon=True).start()

    def _drive(self, index: int) -> None:
        with listening():
            self._answer_all(index)

    def _answer_all(self, index: int) -> None:
        while (piece := self._queue.take()) is not None:
            try:
                if self._links[index].has_ended:
                    self._replace(index)
                piece.job.on_answer(piece, self._links[index].ask(piece.message))
            except (EOFError, OSError):
                self._give_back(piece, self._links[index])
            except EngineError as error:
                self._queue.put_back(piece)
                self._queue.close(PoolClosed(f"no more workers can be started ({error}): open another pool"))

    def _give_back(self, piece: Piece, link: Link) -> None:
        """Requeue texts whose worker died, once; the second time their job fails."""
        piece.num_tries += 1
        if piece.num_tries < 2:
            self._queue.put_back(piece)
        else:
            piece.job.fail(
                WorkerDied(
                    f"two workers ended on the same texts: remove the longest. The second {link.ending()}",
                    is_blamed=True,
                )
            )

    def _replace(self, index: int) -> None:
        """Replace a dead worker, from a new fork server where the old one has ended too.

        Raises EngineError when no worker can be started.
        """
        with self._lock:
            if self._is_closed:
                raise PoolClosed("the pool was closed")
            self._links[index].close()
            try:
                self._links[index] = self._program.part()
            except WorkerDied:
                self._program.close()
                self._program = Program(self._load)
                self._links[index] = self._program.part()
            if self._is_closed:
                self._program.close()

    def measure(self) -> WorkerFigures:
        """Return memory and times of the fork server and of the workers that are alive."""
        workers = [_figures(link.pid, link) for link in self._links if not link.has_ended]
        return WorkerFigures(_figures(self._program.pid), workers)

    def close(self, reason: str = CLOSED) -> None:
        """End all processes; waiting and running jobs fail with PoolClosed and this reason. Safe to call twice."""
        self._is_closed = True
        self._queue.close(PoolClosed(reason))
        self._program.close()
        for link in self._links:
            link.close()


def _figures(pid: int, link: Link | None = None) -> ProcessFigures:
    done = (link.compute_s, link.num_texts, link.num_tokens) if link else ()
    try:
        process = psutil.Process(pid)
        memory, cpu = process.memory_full_info(), process.cpu_times()
        return ProcessFigures(pid, getattr(memory, "pss", math.nan), memory.uss, cpu.user + cpu.system, *done)
    except psutil.Error:
        return ProcessFigures(pid, math.nan, math.nan, math.nan, *done)
