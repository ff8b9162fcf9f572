"""Semantic index: embeds the history's texts in the background once the user has switched on search by meaning."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.embedding.models import find_model
from engine.embedding.specs import EmbedSpec
from engine.errors import EngineError, HistoryError, PoolClosed
from engine.history import History
from engine.history.vectors import DIM, Model, Unread
from engine.machine.cores import threads_for
from engine.step_parts import Floats
from engine.tasks import Task
from engine.units import counted
from engine.workbench.embedding_manager import EmbeddingManager
from engine.workbench.machine_lease import Lease, MachineBusy, MachineLease

SPEC = EmbedSpec()
TEXTS_AT_ONCE = 64

MOST_TOKENS, BYTES_PER_TOKEN = 256, 4
TOKENS_PER_S, LOAD_S = 2_500, 6.0
"""Tokens per second of one core and seconds to load the model, on the reference machine.

The speed is used until this machine's own has been measured.
"""
BYTES_PER_TEXT = 1_700
"""Bytes of the history file for each text, measured: 384 numbers, their key and its index."""

CHECK_S, WAIT_S = 20.0, 1.0
LET_GO_S = 60.0
"""Seconds for which the model stays in memory after the last text."""
READING = "Indexing texts for search by meaning"


class Cost(NamedTuple):
    """Estimated cost of embedding all texts without a vector: texts, seconds, bytes of the history file."""

    num_texts: int
    seconds: float
    num_bytes: int


class SemanticIndex:
    """Background indexer: embeds prompts and outputs into the history's vectors while the machine is otherwise idle.

    Any thread may call it. `reading` is its task, None while there is nothing to do. `error` is the reason why it
    stopped, None where the user stopped it.
    """

    def __init__(
        self, history: Callable[[], History | None], embedding: EmbeddingManager, machine: MachineLease
    ) -> None:
        self._history, self._embedding, self._machine = history, embedding, machine
        self.reading: Task[None] | None = None
        self.error: EngineError | None = None
        self.is_stopped = False
        self._bytes_per_s = float(threads_for(1) * TOKENS_PER_S * BYTES_PER_TOKEN)
        self._news, self._lock = threading.Event(), threading.Lock()
        self._read_at = 0.0
        self._has_opened = self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="logitbench-meaning", daemon=True)
        self._thread.start()

    # requests of the user

    @property
    def is_on(self) -> bool:
        """True once the index has been switched on in this history."""
        history = self._history()
        return history is not None and history.vectors.model is not None

    def cost(self) -> Cost:
        """Return the cost of embedding the remaining texts. Raises ModelError where the model is not installed."""
        unread = self._open_history().vectors.num_unread(_installed().hash, MOST_TOKENS * BYTES_PER_TOKEN)
        seconds = self._seconds(unread.num_bytes) if unread.num_texts else 0.0
        return Cost(unread.num_texts, seconds, unread.num_texts * BYTES_PER_TEXT)

    def turn_on(self) -> None:
        """Embed all stored texts and, from now on, each finished trial; also resumes after `stop`.

        Raises ModelError where the model is not installed.
        """
        self._open_history().vectors.begin(_installed())
        self.is_stopped, self.error = False, None
        cost = self.cost()
        with self._lock:
            if self.reading is None or not self.reading.is_running or self.reading.is_stopped:
                self.reading = self._announced(cost) if cost.num_texts else None
        self.wake()

    def stop(self) -> None:
        """Stop embedding until `turn_on` or the next start of the program; existing vectors stay."""
        with self._lock:
            self.is_stopped = True
            if self.reading is not None:
                self.reading.stop()
        self.wake()

    def turn_off(self) -> None:
        """Remove all vectors and switch the index off."""
        self._open_history().vectors.forget()

    # notifications of the workbench

    def wake(self) -> None:
        """Wake the thread: there may be new texts to embed."""
        self._news.set()

    def close(self) -> None:
        """End the thread; waits for a load in progress."""
        self._is_closed = True
        self.stop()
        self._thread.join()

    def _open_history(self) -> History:
        history = self._history()
        if history is None:
            raise HistoryError("The history is unusable, so there is nothing to search. Fix that first.")
        return history

    # the thread

    def _run(self) -> None:
        while not self._is_closed:
            self._news.clear()
            with self._lock:
                task = self.reading or self._new_task()
            if not self.is_stopped or task is self.reading:
                self._do(task)
            self._let_go()
            if not self._is_closed:  # close() may have set _news before _machine_for cleared it
                self._news.wait(CHECK_S)

    def _new_task(self) -> Task[None]:
        return Task(READING, self._read_all)

    def _announced(self, cost: Cost) -> Task[None]:
        """Return a task that reports its total work before it begins."""
        task = self._new_task()
        task.waits_for = self._machine.busy_with
        task.report(0.0, _doing(0, cost.num_texts), cost.seconds)
        return task

    def _do(self, task: Task[None]) -> None:
        task.run()
        with self._lock:
            if self.reading not in (None, task):  # switched on again in the meantime
                return
            # PoolClosed: the memory or another model was needed; indexing resumes later.
            if task.state == "failed" and not isinstance(task.error, PoolClosed):
                self.error, self.is_stopped = task.error, True
            elif task.state == "stopped" and self.reading is task:
                self.is_stopped = True
            self.reading = None

    def _read_all(self, task: Task[None]) -> None:
        history = self._history()
        kept_of = history.vectors.model if history is not None else None
        if history is None or kept_of is None:
            return
        model = _installed()
        if kept_of != model:
            history.vectors.begin(model)
        total, done = history.vectors.num_unread(model.hash, MOST_TOKENS * BYTES_PER_TOKEN), 0
        while history.vectors.model == model:
            task.check()
            texts = history.vectors.unread(model.hash, TEXTS_AT_ONCE)
            if not texts:
                return
            num = sum(bool(one.text.strip()) for one in texts)
            self._report(task, done, max(total.num_texts, done + num), total.num_bytes)
            with self._machine_for(task) as lease:
                if self._read(history, model, texts, lambda: task.is_stopped or lease.is_unwanted):
                    done += num
                elif lease.is_unwanted:
                    self._free_memory()

    def _report(self, task: Task[None], done: int, total: int, num_bytes: int) -> None:
        left_s = self._seconds((total - done) / max(total, 1) * num_bytes)
        task.report(done / max(total, 1), _doing(done, total), left_s)
        with self._lock:
            if self.is_stopped:
                task.stop()
            else:
                self.reading = task

    def _seconds(self, num_bytes: float) -> float:
        return (0.0 if self._embedding.is_open else LOAD_S) + num_bytes / self._bytes_per_s

    def _machine_for(self, task: Task[None]) -> Lease:
        """Wait for a lease of the machine, and free the model's memory while others measure. Raises Stopped."""
        while True:
            task.check()
            if self._embedding.is_free_for(SPEC):
                try:
                    lease = self._machine.acquire(READING, "background")
                except MachineBusy as busy:
                    task.waits_for = busy.holder
                else:
                    task.waits_for = ""
                    return lease
            else:
                task.waits_for = "Another embedding model"
            if self._machine.is_measuring:
                self._free_memory()
            self._news.wait(WAIT_S)
            self._news.clear()

    def _read(self, history: History, model: Model, texts: Sequence[Unread], is_unwanted: Callable[[], bool]) -> bool:
        """Compute and store the vectors of these texts; return False once they are unwanted."""
        found = self._vectors_of(texts, is_unwanted)
        if found is None:
            return False
        history.vectors.keep(model.hash, texts, *found)
        self._read_at = time.monotonic()
        return True

    def _vectors_of(
        self, texts: Sequence[Unread], is_unwanted: Callable[[], bool]
    ) -> tuple[Floats, npt.NDArray[np.bool_]] | None:
        """Return a row for each text (NaN where it is blank) and a mask of truncated texts; None once unwanted.

        Equal texts are computed once.
        """
        places = {
            text: place for place, text in enumerate(dict.fromkeys(one.text for one in texts if one.text.strip()))
        }
        vectors: Floats = np.full((len(texts), DIM), np.nan, np.float32)
        is_cut = np.array([one.is_longer for one in texts], np.bool_)
        if not places:
            return vectors, is_cut
        was_open, began = self._embedding.is_open, time.monotonic()
        result = self._embedding.read(tuple(places), SPEC, is_unwanted)
        if result is None:
            return None
        self._has_opened = True
        if was_open:
            num_bytes = sum(min(len(text.encode()), MOST_TOKENS * BYTES_PER_TOKEN) for text in places)
            self._bytes_per_s = num_bytes / max(time.monotonic() - began, 1e-3)
        rows = [row for row, one in enumerate(texts) if one.text in places]
        at = [places[texts[row].text] for row in rows]
        vectors[rows] = result.vectors[at]
        is_cut[rows] |= result.is_cut[at]
        return vectors, is_cut

    def _let_go(self) -> None:
        """Free the model's memory if the index opened the model and it has been idle for LET_GO_S seconds."""
        if time.monotonic() - self._read_at > LET_GO_S and self._embedding.quiet_s > LET_GO_S:
            self._free_memory()

    def _free_memory(self) -> None:
        if self._has_opened:
            self._has_opened = False
            self._embedding.release()


def _doing(done: int, total: int) -> str:
    return f"{done:,} of {counted(total, 'text')}"


def _installed() -> Model:
    """Return the installed embedding model. Its weights are hashed once for each state of their file."""
    model = find_model(SPEC.model)
    return Model(model.content_hash(), model.name)
