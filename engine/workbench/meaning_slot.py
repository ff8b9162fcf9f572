"""Texts of the history on their way to vectors, in the background, once a person has switched search by meaning on."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.embedding.models import find_model
from engine.embedding.specs import EmbedSpec
from engine.errors import EngineError, HistoryError, ModelError, PoolClosed
from engine.history import History
from engine.history.vectors import DIM, Model, Unread
from engine.pool.placement import threads_for
from engine.results import Floats
from engine.workbench.embedding_slot import EmbeddingSlot

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
WAY_S, HELD_S = 15.0, 3.0
"""How long a benchmark waits for a load to end, and the time in which it must then begin."""

_log = logging.getLogger(__name__)


class Cost(NamedTuple):
    """What it takes to read all that is unread: texts, seconds, bytes of the history file."""

    num_texts: int
    seconds: float
    num_bytes: int


class Reading(NamedTuple):
    """How far it is, in texts; left_s: seconds, estimated; waits_for: in words, empty while it reads."""

    done: int
    total: int
    left_s: float
    waits_for: str


class MeaningSlot:
    """Reads prompts and outputs into the history's vectors while nobody else wants the machine.

    Any thread may call it. `reading` is None while there is nothing to do; `error` is why it stopped, if it did not
    because somebody stopped it. `busy_with` names what it waits for besides benchmarks, empty for nothing.
    """

    def __init__(
        self,
        history: Callable[[], History | None],
        embedding: EmbeddingSlot,
        *,
        is_measuring: Callable[[], bool],
        busy_with: Callable[[], str],
    ) -> None:
        self._history, self._embedding = history, embedding
        self._is_measuring, self._busy_with = is_measuring, busy_with
        self.reading: Reading | None = None
        self.error: EngineError | None = None
        self.is_stopped = False
        self._bytes_per_s = float(threads_for(1) * TOKENS_PER_S * BYTES_PER_TOKEN)
        self._news, self._at_rest, self._telling = threading.Event(), threading.Event(), threading.Lock()
        self._at_rest.set()
        self._held_until = self._read_at = 0.0
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
        with self._telling:
            if cost.num_texts and self.reading is None:
                self.reading = Reading(0, cost.num_texts, cost.seconds, self._waits_for())
            self.wake()

    def stop(self) -> None:
        """Read no more until `turn_on`, or the next start; what was read stays."""
        self.is_stopped = True

    def turn_off(self) -> None:
        """Remove all vectors, and read no more."""
        self._open_history().vectors.forget()

    # what the workbench tells

    def wake(self) -> None:
        """There may be something to read."""
        self._news.set()

    def make_way(self) -> None:
        """A benchmark is about to begin: returns once nothing is computed here, after seconds where a model loads."""
        self._held_until = time.monotonic() + WAY_S
        self._at_rest.wait(WAY_S)
        self._held_until = time.monotonic() + HELD_S

    def close(self) -> None:
        """End; a load in progress is waited for."""
        self._is_closed = True
        self.wake()
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
            try:
                self._read_all()
            except PoolClosed:
                pass  # somebody wanted the memory, or another model
            except EngineError as error:
                self.error, self.is_stopped = error, True
            except Exception as defect:
                _log.exception("texts of the history could not be read")
                self.error = ModelError(f"Reading stopped at a defect of this program: {defect!r}")
                self.is_stopped = True
            finally:
                with self._telling:
                    if not self._news.is_set():  # else it goes on, maybe with what was just switched on
                        self.reading = None
                self._at_rest.set()
            self._let_go()
            if not self._is_closed:  # the news of that may have been taken for other news
                self._news.wait(CHECK_S)

    def _read_all(self) -> None:
        history = self._history()
        kept_of = history.vectors.model if history is not None and not self._is_over else None
        if history is None or kept_of is None:
            return
        model = _installed()
        if kept_of != model:
            history.vectors.begin(model)
        total, done = history.vectors.num_unread(model.hash, MOST_TOKENS * BYTES_PER_TOKEN), 0
        while not self._is_over and history.vectors.model == model:
            texts = history.vectors.unread(model.hash, TEXTS_AT_ONCE)
            if not texts:
                return
            num = sum(bool(one.text.strip()) for one in texts)
            self.reading = self._reading(done, max(total.num_texts, done + num), total.num_bytes)
            if self.reading.waits_for:
                self._wait()
            elif self._read(history, model, texts):
                done += num

    @property
    def _is_over(self) -> bool:
        return self._is_closed or self.is_stopped

    def _reading(self, done: int, total: int, num_bytes: int) -> Reading:
        return Reading(done, total, self._seconds((total - done) / max(total, 1) * num_bytes), self._waits_for())

    def _seconds(self, num_bytes: float) -> float:
        return (0.0 if self._embedding.is_open else LOAD_S) + num_bytes / self._bytes_per_s

    def _waits_for(self) -> str:
        if self._is_measuring() or time.monotonic() < self._held_until:
            return "A benchmark"
        return self._busy_with() or ("" if self._embedding.is_free_for(SPEC) else "Another embedding model")

    def _wait(self) -> None:
        """Somebody else wants the machine: leave it to them, all memory too where they measure it."""
        self._at_rest.set()
        if self._is_measuring():
            self._free_memory()
        self._news.wait(WAIT_S)
        self._news.clear()

    def _read(self, history: History, model: Model, texts: Sequence[Unread]) -> bool:
        """Compute the vectors of these texts and keep them; False where it was stopped on the way."""
        self._at_rest.clear()
        found = self._vectors_of(texts)
        if found is None:
            return False
        history.vectors.keep(model.hash, texts, *found)
        self._read_at = time.monotonic()
        return True

    def _vectors_of(self, texts: Sequence[Unread]) -> tuple[Floats, npt.NDArray[np.bool_]] | None:
        """A row for each text, of NaN where it is blank, and which were cut; equal texts are computed once."""
        places = {
            text: place for place, text in enumerate(dict.fromkeys(one.text for one in texts if one.text.strip()))
        }
        vectors: Floats = np.full((len(texts), DIM), np.nan, np.float32)
        is_cut = np.array([one.is_longer for one in texts], np.bool_)
        if not places:
            return vectors, is_cut
        was_open, began = self._embedding.is_open, time.monotonic()
        result = self._embedding.read(tuple(places), SPEC, self._is_unwanted)
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

    def _is_unwanted(self) -> bool:
        return self._is_over or self._is_measuring() or time.monotonic() < self._held_until

    def _let_go(self) -> None:
        """Free the model's memory, where it was taken here and nobody has used it for a while."""
        if time.monotonic() - self._read_at > LET_GO_S and self._embedding.quiet_s > LET_GO_S:
            self._free_memory()

    def _free_memory(self) -> None:
        if self._has_opened:
            self._has_opened = False
            self._embedding.release()


def _installed() -> Model:
    """The embedding model as it is installed now. Its weights are read once for each state of their file."""
    model = find_model(SPEC.model)
    return Model(model.content_hash(), model.name)
