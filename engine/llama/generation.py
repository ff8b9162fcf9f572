"""One job on one sequence: its ids, its sampler, its text, and the records of its steps."""

import struct
import time
from array import array
from typing import Any, NamedTuple

from engine.errors import ModelError
from engine.llama.candidates import Candidates
from engine.llama.distribution import Distribution, Figures, Row, Top, largest
from engine.llama.sampler import Sampler
from engine.results import INSPECTED, RECORD, RESAMPLED, FinishReason
from engine.specs import Request
from engine.vocabulary import Vocabulary

_RECORD = struct.Struct("<iiddddddii")
assert _RECORD.size == RECORD.itemsize
_NAN = float("nan")


class Scratch:
    """Buffers of one vocabulary size that all jobs of a worker share, and where the time over a row went.

    distribution_s: seconds spent on the model's own figures and candidates; sample_s: on the sampler chain.
    """

    def __init__(self, num_vocab: int) -> None:
        self.distribution = Distribution(num_vocab)
        self.room = Candidates(num_vocab)
        self.distribution_s = 0.0
        self.sample_s = 0.0


class Recorded(NamedTuple):
    """One step as bytes: a results.RECORD row, and k candidates' ids, logprobs and final probabilities."""

    record: bytes
    top_ids: bytes = b""
    top_logprobs: bytes = b""
    top_p_final: bytes = b""


class Clock(NamedTuple):
    """Monotonic seconds: submitted by the caller, taken from the queue."""

    submitted: float
    started: float


class Generation:
    """State of a running job: its prompt `ids`, and `pending`, the drawn token that is not in the cache yet."""

    def __init__(
        self, job: int, ids: list[int], request: Request, sampler: Sampler, vocabulary: Vocabulary, clock: Clock
    ) -> None:
        self.job, self.ids, self.request, self.sampler = job, ids, request, sampler
        self.vocabulary, self.clock = vocabulary, clock
        self.num_prompt = len(ids)
        self.pending = -1
        self.num_generated = 0
        self.finish_reason: FinishReason | None = None
        self._text = bytearray(vocabulary.join(ids[self.num_prompt - request.generated :]))
        self._text_start = len(self._text)
        self.text_bytes = 0
        self._stops = [stop.encode() for stop in request.stop]
        self.first_at = self.last_at = clock.started
        self._previous = clock.submitted

    def replay(self, row: Row, token: int, scratch: Scratch) -> None:
        """Draw as when `token` was generated, so that every generator stands where it stood, and take `token`."""
        top = scratch.distribution.top(row, max(self.sampler.num_presorted, 1))
        self.sampler.choose(row, top, scratch.room)
        self.sampler.accept(token)

    def draw(self, row: Row, context: Any, index: int, now: float, scratch: Scratch) -> Recorded:
        """Draw the next token without a look at the row, which is the context's at `index`; else as `step`."""
        began = time.perf_counter()
        try:
            choice = self.sampler.draw(row, context, index)
        except ModelError as error:
            raise self._at_this_token(error) from error
        scratch.sample_s += time.perf_counter() - began
        drawn = (choice.p_final, choice.draw, choice.num_kept)
        recorded = self._record(row, choice.token, None, None, None, now, scratch, 0, drawn)
        self._take(choice.token, now)
        return recorded

    def _at_this_token(self, error: ModelError) -> ModelError:
        return ModelError(f"generated token {self.num_generated + 1}: {error}")

    def step(self, row: Row, now: float, scratch: Scratch) -> Recorded:
        """Draw the next token from a row of logits; raises ModelError naming the step for a row that is not finite."""
        k = self.request.top_k
        began = time.perf_counter()
        try:
            top = scratch.distribution.top(row, max(k, self.sampler.num_presorted, 1))
        except ModelError as error:
            raise self._at_this_token(error) from error
        figures = scratch.distribution.measure(row, float(top.logits[0])) if k else None
        measured = time.perf_counter()
        choice = self.sampler.choose(row, top, scratch.room)
        p_final = scratch.room.p_of(top.ids[:k]) if k else None
        self.sampler.accept(choice.token)
        scratch.distribution_s += measured - began
        scratch.sample_s += time.perf_counter() - measured
        flags = RESAMPLED if choice.is_resampled else 0
        drawn = (choice.p_final, choice.draw, choice.num_kept)
        recorded = self._record(row, choice.token, figures, top if k else None, p_final, now, scratch, flags, drawn)
        self._take(choice.token, now)
        return recorded

    def score(self, row: Row, token: int, now: float, scratch: Scratch) -> Recorded:
        """Figures of a prompt token under the row before it."""
        try:
            figures = scratch.distribution.measure(row, largest(row))
        except ModelError as error:
            raise ModelError(f"prompt token {token}: {error}") from error
        top = scratch.distribution.top(row, self.request.top_k) if self.request.top_k else None
        return self._record(row, token, figures, top, None, now, scratch, 0, (_NAN, _NAN, 0))

    def _record(
        self,
        row: Row,
        token: int,
        figures: Figures | None,
        top: Top | None,
        p_final: list[float] | None,
        now: float,
        scratch: Scratch,
        flags: int,
        drawn: tuple[float, float, int],
    ) -> Recorded:
        elapsed, self._previous = now - self._previous, now
        probability, draw, num_kept = drawn
        if figures is None:
            return Recorded(_RECORD.pack(token, 0, _NAN, _NAN, _NAN, _NAN, draw, elapsed, flags, num_kept))
        normaliser, entropy = figures
        logit = float(row[token])
        logprob = logit - normaliser
        is_among = top is not None and logit >= top.logits[-1]
        rank = top.rank(logit) if top is not None and is_among else scratch.distribution.rank(row, token)
        flags |= INSPECTED
        record = _RECORD.pack(token, rank, logprob, entropy, normaliser, probability, draw, elapsed, flags, num_kept)
        if top is None:
            return Recorded(record)
        return Recorded(record, *_candidates(top, normaliser, p_final, self.request.top_k))

    def _take(self, token: int, now: float) -> None:
        """Count the drawn token and see whether it ends the job."""
        self.num_generated += 1
        self.first_at = now if self.num_generated == 1 else self.first_at
        self.last_at = now
        self.pending = token
        before = len(self._text)
        self._text += self.vocabulary.pieces[token]
        self.text_bytes = len(self._text) - self._text_start
        if self.vocabulary.is_end(token):
            self.finish_reason = "stop"
        for stop in self._stops:
            found = self._text.find(stop, max(0, before - len(stop) + 1))
            if found >= 0:
                self.finish_reason = "stop"
                self.text_bytes = min(self.text_bytes, max(0, found - self._text_start))
        if self.finish_reason is None and self.num_generated >= self.request.max_tokens:
            self.finish_reason = "length"

    def finish_scored(self, now: float) -> None:
        """The prompt is computed and nothing is to be generated."""
        self.finish_reason = "length"
        self.first_at = self.last_at = now

    @property
    def prefill_s(self) -> float:
        """Seconds from leaving the queue to the first token."""
        return self.first_at - self.clock.started

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the last."""
        return self.last_at - self.first_at

    def close(self) -> None:
        """Free the sampler."""
        self.sampler.close()


def _candidates(top: Top, normaliser: float, p_final: list[float] | None, k: int) -> tuple[bytes, bytes, bytes]:
    """Ids, logprobs and final probabilities of k candidates, of those that the vocabulary has not -1 and 0."""
    ids = top.ids[:k].tolist()
    missing = k - len(ids)
    logprobs = [logit - normaliser for logit in top.logits[:k].tolist()]
    finals = [_NAN] * len(ids) if p_final is None else p_final
    if missing:
        ids, logprobs, finals = ids + [-1] * missing, logprobs + [0.0] * missing, finals + [0.0] * missing
    return array("i", ids).tobytes(), array("f", logprobs).tobytes(), array("f", finals).tobytes()
