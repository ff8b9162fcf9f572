"""Decode loop of a worker: admits jobs, decodes the scheduler's plan, samples, records, reports."""

import random
import time
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from engine.errors import ConfigError, EngineError, ModelError, PromptTooLong
from engine.llama.context import NO_SLOT, OK, Chunk, Decoder
from engine.llama.distribution import Row
from engine.llama.model import Model
from engine.llama.phase import DECODING, PREPARING, SAMPLING, TOKENISING, Stamp
from engine.llama.prefix import PrefixCache
from engine.llama.sampler import Sampler
from engine.llama.scheduler import Plan, Scheduler
from engine.llama.scored_records import ScoredRecords
from engine.llama.sequence import Clock, Scratch, Sequence
from engine.llama.threads import Threads
from engine.specs import PoolSpec, Request, Sampling

_ADVANCED_AT_ONCE = 256
"""Tokens that a sampler accepts between two stamps: a long text with a grammar takes time without being hung."""


class Reporter(Protocol):
    """Receiver of the runner's events, called in order from the runner's own thread."""

    def started(self, job: int, prompt_ids: list[int], num_cached: int, seed: int, queue_s: float) -> None:
        """Report that the job left the queue."""

    def steps(self, job: int, steps: Iterable[bytes], *, is_prompt: bool) -> None:
        """Report new steps of the job, rows of steps.step_dtype."""

    def ended(self, sequence: Sequence) -> None:
        """Report that the job is over; `finish_reason` is the reason."""

    def cancelled(self, job: int) -> None:
        """Report that the job was cancelled before it left the queue."""

    def failed(self, job: int, error: EngineError) -> None:
        """Report that the job ended with an error."""


class QueuedRequest(NamedTuple):
    """A request that waits for a sequence. submitted: monotonic seconds of this process."""

    job: int
    prompt: str | list[int]
    sampling: Sampling
    request: Request
    submitted: float


class Runner:
    """Decode loop over one context. Call submit() and cancel() between steps; step() runs one decode.

    Totals so far: decode_s: seconds inside the context's decode; prefill_s: the part of them for batches with chunks of
    prompts; decode_cpu_s: CPU seconds of this thread inside it; tokenise_s: seconds of tokenising;
    num_decodes, num_tokens.
    """

    def __init__(
        self,
        model: Model,
        context: Decoder,
        spec: PoolSpec,
        *,
        threads: int,
        threads_batch: int,
        prefill_share: int,
        reporter: Reporter,
        stamp: Stamp,
    ) -> None:
        self.model, self.spec, self._reporter, self._stamp = model, spec, reporter, stamp
        self.context = context
        self.threads = Threads(self.context, spec, threads, threads_batch)
        sizes = (spec.parallel, spec.resolved_n_batch, spec.resolved_n_ubatch)
        self.scheduler: Scheduler[Sequence] = Scheduler(*sizes, prefill_share, spec.scored_rows(model.num_vocab))
        self._cache = PrefixCache(spec.parallel, can_cut=not model.is_recurrent)
        self._records = ScoredRecords(spec.parallel)
        self.scratch = Scratch(model.num_vocab)
        self._waiting: dict[int, QueuedRequest] = {}
        self._ids: dict[int, list[int]] = {}
        self._num_exact = 0
        self.decode_s = self.prefill_s = self.decode_cpu_s = self.tokenise_s = 0.0
        self.num_decodes = 0
        self.num_tokens = 0

    @property
    def is_idle(self) -> bool:
        """True when nothing runs and nothing waits."""
        return self.scheduler.is_idle

    def submit(self, order: QueuedRequest) -> None:
        """Queue a job."""
        self._waiting[order.job] = order
        self.scheduler.enqueue(order.job)

    def cancel(self, job: int) -> None:
        """Cancel a waiting or running job, keeping the steps it has; ignores unknown jobs, which are over already."""
        if self.scheduler.drop(job):
            self._forget(job)
            self._reporter.cancelled(job)
            return
        for seq_id, sequence in self.scheduler.running.items():
            if sequence.job == job:
                sequence.finish_reason = "cancelled"
                self._end(seq_id)
                return

    def step(self) -> None:
        """Admit jobs that can start, then run one batch and report its results."""
        while (job := self.scheduler.next_job()) is not None:
            order, taken = self._waiting[job], time.monotonic()
            try:
                if self._awaits_prefix(order):
                    self.scheduler.postpone(job)
                    break
                self._admit(order, taken)
            except EngineError as error:
                self._reporter.failed(job, error)
            self._forget(job)
        if not self.scheduler.is_steady:
            self._close_gaps()
        plan = self.scheduler.plan()
        if plan:
            self._run(plan)

    def _forget(self, job: int) -> None:
        """Remove the job from the waiting ones."""
        del self._waiting[job]
        self._ids.pop(job, None)

    def _awaits_prefix(self, order: QueuedRequest) -> bool:
        """Return whether a running job is computing the prefix of this prompt, so that it can be copied afterwards."""
        request, running = order.request, self.scheduler.running
        if not running or not request.reuse_prefix:
            return False
        ids = self._prompt_ids(order)
        if not request.prompt_logprobs:
            return self._cache.is_coming(ids, most=len(ids) - 1 - request.generated - request.forced)
        recorded = request.top_k, request.watched
        scored = {
            seq_id
            for seq_id, one in running.items()
            if one.is_scored and (one.request.top_k, one.request.watched) == recorded
        }
        num_scored = self._records.shared(ids, *recorded).num_tokens
        return self._cache.is_coming(ids, most=len(ids) - 1, num_scored=num_scored, computing=scored)

    def _admit(self, order: QueuedRequest, started: float) -> None:
        ids = self._prompt_ids(order)
        self._stamp(PREPARING, order.job)
        request = order.request
        seed = random.getrandbits(31) if order.sampling.seed is None else order.sampling.seed
        sampler = Sampler(order.sampling, seed, self.model, self.context.n_ctx)
        clock = Clock(order.submitted, started)
        sequence = Sequence(order.job, ids, request, sampler, self.model.vocabulary, clock, self.context.n_ctx)
        ids = sequence.ids
        self._restore(sequence)
        kept = self._records.shared(ids, request.top_k, request.watched)
        seq_id = self._place(sequence, num_scored=kept.num_tokens)
        sequence.decodes_before = dict(self.threads.num_decodes)
        self._num_exact += not request.reuse_prefix
        self.scheduler.admit(seq_id, sequence)
        self._reporter.started(order.job, ids, sequence.num_computed, seed, max(0.0, started - order.submitted))
        if sequence.is_scored:
            sequence.scored = self._records.begin(ids, request.top_k, request.watched)
            if sequence.num_computed:
                self._report_scored(sequence, sequence.take_records(kept.rows, time.monotonic()))

    def _restore(self, sequence: Sequence) -> None:
        """Advance the sampler past the tokens that were generated before, unless they are going to be replayed."""
        if sequence.is_replayed:
            return
        try:
            for first in range(sequence.num_given, len(sequence.ids), _ADVANCED_AT_ONCE):
                self._stamp(PREPARING, sequence.job)
                sequence.sampler.advance(sequence.ids[first : first + _ADVANCED_AT_ONCE])
        except EngineError:
            sequence.close()
            raise

    def _prompt_ids(self, order: QueuedRequest) -> list[int]:
        """Return the checked ids of a job's prompt, tokenised only once."""
        if order.job not in self._ids:
            self._stamp(TOKENISING, order.job)
            self._ids[order.job] = self._checked_ids(order)
        return self._ids[order.job]

    def _checked_ids(self, order: QueuedRequest) -> list[int]:
        # the last token of a prompt that is only scored is predicted, never computed: it may lie beyond the context
        is_only_scored = order.request.prompt_logprobs and order.request.max_tokens == 0
        most = self.context.n_ctx + int(is_only_scored)
        if isinstance(order.prompt, str):
            # a text of this many bytes cannot fit, whatever its tokens are; a tokenizer may take minutes to find out
            fewest = self.model.vocabulary.fewest_tokens(order.prompt)
            if fewest > most:
                raise PromptTooLong.of(f"at least {fewest:,}", most)
            before = time.perf_counter()
            ids = self.model.tokenize(order.prompt)
            self.tokenise_s += time.perf_counter() - before
        else:
            ids = self.model.check_ids(order.prompt).tolist()
        self.model.check_ids([token for word in order.request.watched for token in word], "a watched word")
        if not ids:
            raise ConfigError("the prompt is empty: this model needs at least one token to start from")
        if len(ids) > most:
            raise PromptTooLong.of(f"{len(ids):,}", most)
        request = order.request
        if request.generated + request.forced >= len(ids):
            given = f"generated = {request.generated:,}" + (f", forced = {request.forced:,}" if request.forced else "")
            raise ConfigError(
                f"{given}: the prompt has {len(ids):,} tokens, of which at least the first must be neither"
            )
        return ids

    def _place(self, sequence: Sequence, *, num_scored: int) -> int:
        """Return the id for a sequence; sets how many of its tokens are computed, as the KV cache there has them.

        num_scored: how many tokens of a scored prompt need not be computed, as what they predict has a record.
        """
        self._stamp(DECODING, sequence.job)
        ids = sequence.ids
        # The first replayed token is drawn from the row of the token before it, which must be computed.
        most = sequence.num_given - 1 if sequence.is_replayed else len(ids) - 1
        if sequence.is_scored:
            most = num_scored
        most = most if sequence.request.reuse_prefix else 0
        num_coming = sequence.num_given if sequence.is_replayed else sequence.num_prompt
        seq_id, source, num_cached = self._cache.place(ids, most=most, num_coming=num_coming)
        if source != seq_id:
            self.context.copy(source, seq_id)
        if not self.context.cut(seq_id, num_cached):
            self._cache.forget(seq_id)
            num_cached = 0
        sequence.num_computed = num_cached
        return seq_id

    def _close_gaps(self) -> None:
        self._stamp(DECODING)
        for source, target in self._cache.close_gaps():
            if self._cache.held[target]:
                self.context.copy(source, target)
            else:
                self.context.cut(target, 0)
            self.scheduler.move(source, target)

    def _run(self, plan: Plan) -> None:
        chunks = [self._chunk(seq_id, num_tokens) for seq_id, num_tokens in plan.items()]
        num_rows = self.context.fill(chunks)
        num_tokens = sum(plan.values())
        code = self._decode(num_tokens, is_prefill=num_tokens > len(plan))
        if code == NO_SLOT:
            stuck = self.scheduler.refused(plan)
            if stuck is not None:
                self._fail(
                    stuck, ModelError("the KV cache has no room for another token: open with a larger context (n_ctx)")
                )
            return
        if code != OK:
            self._isolate(plan, code)
            return
        self.num_decodes += 1
        self.num_tokens += num_tokens
        self.scheduler.computed(plan)
        self._read(chunks, num_rows)

    def _decode(self, num_tokens: int, *, is_prefill: bool) -> int:
        self._stamp(DECODING)
        # the logits of single tokens over a long text depend on the thread count (docs/decisions/0002)
        num_threads = self.threads.choose(num_tokens, is_prompt=is_prefill, is_exact=self._num_exact > 0)
        self.scratch.distribution.use_threads(num_threads)
        began, cpu_began = time.perf_counter(), time.thread_time()
        code = self.context.decode()
        ended = time.perf_counter()
        took = ended - began
        self.decode_s += took
        self.prefill_s += took if is_prefill else 0.0
        self.decode_cpu_s += time.thread_time() - cpu_began
        if code == OK:
            self.threads.decoded(took, ended)
        return code

    def _chunk(self, seq_id: int, num_tokens: int) -> Chunk:
        """Return the next tokens of a sequence; the last of a prompt and scored or replayed ones need logits."""
        sequence = self.scheduler.running[seq_id]
        if sequence.is_generating:
            position = sequence.num_prompt + sequence.num_generated - 1
            return Chunk(seq_id, (sequence.pending,), position, 1)
        start, end = sequence.num_computed, sequence.num_computed + num_tokens
        num_rows = num_tokens if sequence.is_scored else int(end >= sequence.single_from)
        return Chunk(seq_id, sequence.ids[start:end], start, num_rows)

    def _read(self, chunks: list[Chunk], num_rows: int) -> None:
        rows = self.context.logits(num_rows) if num_rows else []
        end_row = 0
        for chunk in chunks:
            self._cache.extend(chunk.seq_id, chunk.ids)
            first, end_row = end_row, end_row + chunk.num_rows
            if chunk.num_rows:
                try:
                    self._read_chunk(chunk, rows[first:end_row])
                except EngineError as error:
                    self._fail(chunk.seq_id, error)

    def _read_chunk(self, chunk: Chunk, rows: list[Row]) -> None:
        """Score or replay the prompt tokens that the rows predict, then draw a token if the prompt is complete."""
        sequence = self.scheduler.running[chunk.seq_id]
        self._stamp(SAMPLING, sequence.job)
        end = chunk.position + len(chunk.ids)
        known = sequence.ids[end - len(rows) + 1 : end + 1]
        if known:
            self._read_known(sequence, rows, known)
        if not sequence.is_generating:
            return
        if sequence.request.max_tokens == 0:
            sequence.finish_scored(time.monotonic())
            self._end(chunk.seq_id)
            return
        step = sequence.step(rows[-1], time.monotonic(), self.scratch)
        self._reporter.steps(sequence.job, (step,), is_prompt=False)
        if sequence.finish_reason is None and end >= self.context.n_ctx:
            sequence.finish_reason = "length"
        if sequence.finish_reason is not None:
            self._end(chunk.seq_id)

    def _read_known(self, sequence: Sequence, rows: list[Row], known: list[int]) -> None:
        """Score or replay prompt tokens, each under the row before it."""
        if not sequence.is_scored:
            for row, token in zip(rows, known, strict=False):
                sequence.replay(row, token, self.scratch)
            return
        now = time.monotonic
        scored = [sequence.score(row, token, now(), self.scratch) for row, token in zip(rows, known, strict=False)]
        self._report_scored(sequence, b"".join(scored))

    def _report_scored(self, sequence: Sequence, steps: bytes) -> None:
        if sequence.scored:
            sequence.scored.rows += steps
        self._reporter.steps(sequence.job, (steps,), is_prompt=True)

    def _end(self, seq_id: int) -> None:
        sequence = self.scheduler.running[seq_id]
        sequence.threads, sequence.threads_batch = (
            self.threads.mostly_since(sequence.decodes_before, is_prompt=is_prompt) for is_prompt in (False, True)
        )
        self._release(seq_id)
        self._reporter.ended(sequence)

    def _fail(self, seq_id: int, error: EngineError) -> None:
        job = self.scheduler.running[seq_id].job
        self._release(seq_id)
        self._reporter.failed(job, error)

    def _release(self, seq_id: int) -> None:
        sequence = self.scheduler.release(seq_id)
        self._num_exact -= not sequence.request.reuse_prefix
        sequence.close()
        self._cache.release(seq_id)

    def _isolate(self, plan: Plan, code: int) -> None:
        """Find the job at fault when llama.cpp rejects a batch for a reason other than space, one sequence at a time.

        A code below -1 leaves the context unusable: this raises ModelError, and the worker ends and is replaced.
        """
        if code < -1:
            raise ModelError(f"llama_decode returned {code}: the context is no longer usable")
        if len(plan) == 1:
            seq_id = next(iter(plan))
            self._cache.forget(seq_id)
            self.context.cut(seq_id, 0)
            self._fail(seq_id, ModelError(f"llama_decode returned {code} for this job's tokens"))
            return
        for seq_id, num_tokens in plan.items():
            self._run({seq_id: num_tokens})
