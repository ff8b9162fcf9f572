"""Sequence: a running job with its ids, progress, sampler and generated text; makes the records of its steps."""

import math
import time
from collections import deque
from typing import NamedTuple

import numpy as np

from engine.errors import ModelError
from engine.llama.candidates import Candidates
from engine.llama.distribution import Distribution, Drawn, Row, Watched
from engine.llama.sampler import Sampler
from engine.llama.scheduler import Progress
from engine.llama.scored_records import ScoredPrompt
from engine.results import FinishReason
from engine.specs import Request
from engine.step_parts import FORCED, step_dtype
from engine.vocabulary import Vocabulary


class Scratch:
    """Buffers of one vocabulary size that all jobs of a worker share, and totals of the time spent on rows.

    distribution_s: seconds spent on the model's own figures and candidates; sample_s: on the sampler chain.
    """

    def __init__(self, num_vocab: int) -> None:
        self.distribution = Distribution(num_vocab)
        self.room = Candidates(num_vocab)
        self.distribution_s = 0.0
        self.sample_s = 0.0


class Clock(NamedTuple):
    """Monotonic seconds: when the caller submitted the job, and when it left the queue."""

    submitted: float
    started: float


class Sequence(Progress):
    """State of a running job: its prompt `ids`, and `pending`, the drawn token that is not in the KV cache yet.

    Prompt tokens beyond `n_ctx` are only predicted, never computed. The request's forced tokens do not belong to `ids`:
    each is taken instead of a draw. is_replayed: the tokens at the end of the prompt
    that were generated before are drawn again, to restore the sampler. scored: where the records of a scored
    prompt are kept, None if nowhere. threads, threads_batch: thread counts that computed most steps and most chunks of
    prompts while it ran, set once it ended. decodes_before: Threads.num_decodes when it began.
    """

    def __init__(
        self,
        job: int,
        ids: list[int],
        request: Request,
        sampler: Sampler,
        vocabulary: Vocabulary,
        clock: Clock,
        n_ctx: int,
    ) -> None:
        self._forced = deque(ids[len(ids) - request.forced :])
        ids = ids[: len(ids) - request.forced]
        self.num_given = len(ids) - request.generated
        self.is_replayed = request.generated > 0 and not request.prompt_logprobs
        self.is_replayed &= sampler.needs_rows or not request.reuse_prefix
        super().__init__(
            min(len(ids), n_ctx),
            single_from=self.num_given if self.is_replayed else None,
            is_scored=request.prompt_logprobs,
        )
        self.job, self.ids, self.request, self.sampler = job, ids, request, sampler
        self.vocabulary, self.clock = vocabulary, clock
        self.scored: ScoredPrompt | None = None
        self._watched = Watched(request.watched) if request.watched else None
        self.pending = -1
        self.num_generated = 0
        self.threads: int | None = None
        self.threads_batch: int | None = None
        self.decodes_before: dict[tuple[bool, int], int] = {}
        self.finish_reason: FinishReason | None = None
        self._text = bytearray(vocabulary.join(ids[self.num_given :]))
        self._text_start = len(self._text)
        self.text_bytes = 0
        self._stops = [stop.encode() for stop in request.stop]
        self.first_at = self.last_at = clock.started
        self._previous = clock.submitted

    def replay(self, row: Row, token: int, scratch: Scratch) -> None:
        """Repeat the draw made when `token` was generated, to restore the state of every generator; accept `token`."""
        scratch.distribution.look(row, self.sampler.num_presorted, is_measured=False)
        self.sampler.choose(row, scratch.distribution, scratch.room)
        self.sampler.accept(token)

    def step(self, row: Row, now: float, scratch: Scratch) -> bytes:
        """Draw the next token from a row of logits, or take the next forced one, and return the step's record.

        Raises ModelError, which names the token, for a row that is not finite, and ConfigError for a forced token that
        the grammar does not allow.
        """
        k, seen, room = self.request.top_k, scratch.distribution, scratch.room
        began = time.perf_counter()
        self._look(row, seen, max(k, self.sampler.num_presorted), is_measured=k > 0 or self._watched is not None)
        looked = time.perf_counter()
        has_stages = self.request.stages
        drawn = self.sampler.choose(row, seen, room, followed=k if has_stages else 0)
        if self._forced:
            drawn = Drawn(self._forced.popleft(), math.nan, FORCED)
        self.sampler.accept(drawn.token)
        scratch.distribution_s += looked - began
        scratch.sample_s += time.perf_counter() - looked
        num_stages = len(self.sampler.stages) if has_stages else 0
        elapsed_s = self._elapsed(now)
        recorded = seen.record(row, drawn, elapsed_s, k, room, num_stages=num_stages, watched=self._watched)
        self._take(drawn.token, now)
        return recorded

    def _look(self, row: Row, seen: Distribution, k: int, *, is_measured: bool) -> None:
        try:
            seen.look(row, k, is_measured=is_measured)
        except ModelError as error:
            raise ModelError(f"generated token {self.num_generated + 1}: {error}") from error

    def score(self, row: Row, token: int, now: float, scratch: Scratch) -> bytes:
        """Return the record of a prompt token, scored under the row before it.

        Raises ModelError for a row that is not finite.
        """
        k, seen = self.request.top_k, scratch.distribution
        try:
            seen.look(row, k, is_measured=True)
        except ModelError as error:
            raise ModelError(f"prompt token {token}: {error}") from error
        return seen.record(row, Drawn(token, math.nan, 0), self._elapsed(now), k, watched=self._watched)

    def take_records(self, kept: bytearray, now: float) -> bytes:
        """Return the records that the computed tokens predict, taken over at the time `now` from those of a prompt with
        the same beginning."""
        dtype = step_dtype(self.request.top_k, num_watched=len(self.request.watched))
        rows = np.frombuffer(kept, dtype, self.num_computed).copy()
        rows["record"]["elapsed_s"] = 0
        rows["record"]["elapsed_s"][0] = self._elapsed(now)
        return rows.tobytes()

    def _elapsed(self, now: float) -> float:
        elapsed, self._previous = now - self._previous, now
        return elapsed

    def _take(self, token: int, now: float) -> None:
        """Append the drawn token and determine whether it ends the job."""
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
        """Finish a job that generates nothing, once its prompt is computed."""
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
