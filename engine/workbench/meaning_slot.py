"""Texts of the history on their way to vectors, in the background, once a person has switched search by meaning on."""

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
from engine.pool.placement import threads_for
from engine.results import Floats
from engine.tasks import Task
from engine.units import counted
from engine.workbench.embedding_slot import EmbeddingSlot
from engine.workbench.machine_lease import Lease, MachineBusy, MachineLease

SPEC = EmbedSpec()
TEXTS_AT_ONCE = 64

MOST_TOKENS, BYTES_PER_TOKEN = 256, 4
TOKENS_PER_S, LOAD_S = 2_500, 6.0
"""Of one core, and until the model is loaded: on the reference machine; used until this machine's own are known."""
BYTES_PER_TEXT = 1_700
"""Of the history file, measured: 384 numbers, their key and its index."""

CHECK_S, WAIT_S = 20.0, 1.0
LET_GO_S = 60.0
"""How long the model stays in memory after the last text."""
READING = "Reading texts for search by meaning"


class Cost(NamedTuple):
    """What it takes to read all that is unread: texts, seconds, bytes of the history file."""

    num_texts: int
    seconds: float
    num_bytes: int


class MeaningSlot:
    """Reads prompts and outputs into the history's vectors while nobody else wants the machine.

    Any thread may call it. `reading` is the task of it, None while there is nothing to do; `error` is why it stopped,
    if it did not because somebody stopped it.
    """

    def __init__(self, history: Callable[[], History | None], embedding: EmbeddingSlot, machine: MachineLease) -> None:
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

    # what a person asks

    @property
    def is_on(self) -> bool:
        """True once somebody has switched it on, in this history."""
        history = self._history()
        return history is not None and history.vectors.model is not None

    def cost(self) -> Cost:
        """What reading the rest would take. Raises ModelError where the model is not installed."""
        unread = self._open_history().vectors.num_unread(_installed().hash, MOST_TOKENS * BYTES_PER_TOKEN)
        seconds = self._seconds(unread.num_bytes) if unread.num_texts else 0.0
        return Cost(unread.num_texts, seconds, unread.num_texts * BYTES_PER_TEXT)

    def turn_on(self) -> None:
        """Read everything there is, and from now on each trial that ends; also what was stopped goes on.

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
        """Read no more until `turn_on`, or the next start; what was read stays."""
        with self._lock:
            self.is_stopped = True
            if self.reading is not None:
                self.reading.stop()
        self.wake()

    def turn_off(self) -> None:
        """Remove all vectors, and read no more."""
        self._open_history().vectors.forget()

    # what the workbench tells

    def wake(self) -> None:
        """There may be something to read."""
        self._news.set()

    def close(self) -> None:
        """End; a load in progress is waited for."""
        self._is_closed = True
        self.stop()
        self._thread.join()

    def _open_history(self) -> History:
        history = self._history()
        if history is None:
            raise HistoryError("The history cannot be used, so there is nothing to search. Mend that first.")
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
            if not self._is_closed:  # the news of that may have been taken for other news
                self._news.wait(CHECK_S)

    def _new_task(self) -> Task[None]:
        return Task(READING, self._read_all)

    def _announced(self, cost: Cost) -> Task[None]:
        """A task that shows what it will do before it begins."""
        task = self._new_task()
        task.waits_for = self._machine.busy_with
        task.report(0.0, _told(0, cost.num_texts), cost.seconds)
        return task

    def _do(self, task: Task[None]) -> None:
        task.run()
        with self._lock:
            if self.reading not in (None, task):  # somebody switched it on anew
                return
            # After PoolClosed somebody wanted the memory, or another model: it goes on later.
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
        task.report(done / max(total, 1), _told(done, total), left_s)
        with self._lock:
            if self.is_stopped:
                task.stop()
            else:
                self.reading = task

    def _seconds(self, num_bytes: float) -> float:
        return (0.0 if self._embedding.is_open else LOAD_S) + num_bytes / self._bytes_per_s

    def _machine_for(self, task: Task[None]) -> Lease:
        """The machine, once nobody else has it; the memory is theirs too while they measure. Raises Stopped."""
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
        """Compute the vectors of these texts and keep them; False where they became unwanted on the way."""
        found = self._vectors_of(texts, is_unwanted)
        if found is None:
            return False
        history.vectors.keep(model.hash, texts, *found)
        self._read_at = time.monotonic()
        return True

    def _vectors_of(
        self, texts: Sequence[Unread], is_unwanted: Callable[[], bool]
    ) -> tuple[Floats, npt.NDArray[np.bool_]] | None:
        """A row for each text, of NaN where it is blank, and which were cut; equal texts are computed once."""
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
        """Free the model's memory, where it was taken here and nobody has used it for a while."""
        if time.monotonic() - self._read_at > LET_GO_S and self._embedding.quiet_s > LET_GO_S:
            self._free_memory()

    def _free_memory(self) -> None:
        if self._has_opened:
            self._has_opened = False
            self._embedding.release()


def _told(done: int, total: int) -> str:
    return f"{done:,} of {counted(total, 'text')}"


def _installed() -> Model:
    """The embedding model as it is installed now. Its weights are read once for each state of their file."""
    model = find_model(SPEC.model)
    return Model(model.content_hash(), model.name)
