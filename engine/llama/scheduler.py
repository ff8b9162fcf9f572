"""Batch scheduler: decides how many tokens of each sequence go into the next decode. Pure: no model, no clock.

At each step the plan gives the number of tokens of every participating sequence: one for a sequence that generates, a
chunk of its prompt for one that does not yet. While any sequence generates, the prompts together get at most
`prefill_share` tokens per step for each prompt of the burst that they came in, so that one long prompt cannot stall the
streams and a burst of prompts does not have to wait for a few streams; prompts never get more than `n_ubatch`, which is
also their limit when nothing generates. The oldest prompt is served first. New jobs join whenever a sequence is free.

The share of a burst stays the same until its last prompt is computed: if it fell with the number of prompts left, the
last ones would take small chunks, each for two more passes over the weights, and a burst 5 % more time
(docs/decisions/0010).

A plan is ordered by sequence: llama.cpp computes contiguous sequences together and the others in separate passes, and
it takes equally many tokens of each sequence in a pass, so that every further chunk length costs another pass
(llama-batch.cpp, split_equal). The room left by the oldest prompt is therefore filled only if that gives more tokens
per pass; otherwise it goes to chunks as long as the first, or stays empty.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Plan = dict[int, int]
"""Tokens of the next batch by sequence."""


class Progress:
    """Progress of a sequence through its prompt: tokens in total and computed so far.

    single_from: position from which tokens are computed one per step; by default none of the prompt's. is_scored: every
    token needs logits; all scored prompts together get at most `scored_rows` tokens per step. burst: number of prompts,
    this one included, that were not computed yet when it was admitted; Scheduler.admit sets it.
    """

    def __init__(
        self, num_prompt: int, num_computed: int = 0, *, single_from: int | None = None, is_scored: bool = False
    ) -> None:
        self.num_prompt, self.num_computed, self.is_scored = num_prompt, num_computed, is_scored
        self.single_from = num_prompt if single_from is None else single_from
        self.burst = 1

    @property
    def is_generating(self) -> bool:
        """True once the whole prompt has been computed."""
        return self.num_computed >= self.num_prompt

    def chunk(self, budget: int) -> int:
        """Return how many prompt tokens to compute out of `budget`."""
        if self.num_computed >= self.single_from:
            return min(1, budget)
        return min(self.single_from - self.num_computed, budget)


Running = TypeVar("Running", bound=Progress)


@dataclass
class Scheduler(Generic[Running]):
    """Scheduler of one worker: `waiting` jobs in order of arrival, `running` sequences by id in order of admission."""

    num_sequences: int
    n_batch: int
    n_ubatch: int
    prefill_share: int = 32
    scored_rows: int = 32
    waiting: deque[int] = field(default_factory=deque)
    running: dict[int, Running] = field(default_factory=dict)
    _limit: int | None = None
    _steady: Plan | None = None

    @property
    def is_idle(self) -> bool:
        """True when there is nothing to compute and nothing waits."""
        return not self.waiting and not self.running

    def enqueue(self, job: int) -> None:
        """Append a job to the queue."""
        self.waiting.append(job)

    def drop(self, job: int) -> bool:
        """Remove a waiting job from the queue; returns False if it is not waiting."""
        if job not in self.waiting:
            return False
        self.waiting.remove(job)
        return True

    def next_job(self) -> int | None:
        """Remove and return the next job if a sequence is free, else None."""
        if self.waiting and len(self.running) < self.num_sequences:
            return self.waiting.popleft()
        return None

    def postpone(self, job: int) -> None:
        """Put a job back at the head of the queue; those behind it wait too, as the oldest is served first."""
        self.waiting.appendleft(job)

    def admit(self, seq_id: int, sequence: Running) -> None:
        """Start a sequence, whose `num_computed` is the number of tokens that the KV cache already has."""
        self._steady = None
        self.running[seq_id] = sequence
        sequence.burst = self._num_prompts()

    def release(self, seq_id: int) -> Running:
        """Remove and return a sequence whose job is over."""
        self._steady = None
        return self.running.pop(seq_id)

    def move(self, source: int, target: int) -> None:
        """Move the job on sequence `source` to `target` with its progress."""
        self._steady = None
        self.running = {target if seq_id == source else seq_id: one for seq_id, one in self.running.items()}

    @property
    def is_steady(self) -> bool:
        """True if all sequences generate and no job has come or gone since the last plan."""
        return self._steady is not None

    def plan(self) -> Plan:
        """Return the next batch, which must not be modified; empty when no sequence has anything to compute.

        While all sequences generate the same plan is returned, until a job comes or goes.
        """
        if self._steady is not None:
            return self._steady
        generating = [seq_id for seq_id, one in self.running.items() if one.is_generating]
        if self._limit is not None:
            generating = generating[: self._limit]
        plan = dict.fromkeys(generating, 1)
        if len(plan) == len(self.running) and self._limit is None:
            self._steady = dict(sorted(plan.items()))
            return self._steady
        share = self.prefill_share * self._burst() if generating else self.n_ubatch
        room = min(share, self.n_ubatch, self.n_batch - len(plan))
        if self._limit is not None:
            room = min(room, self._limit - len(plan))
        filled, even = (plan | self._chunks(room, is_even=is_even) for is_even in (False, True))
        return dict(sorted((even if _tokens_a_pass(even) > _tokens_a_pass(filled) else filled).items()))

    def _num_prompts(self) -> int:
        """Return the number of prompts not computed yet: of running sequences, and of jobs with a free sequence."""
        num_postponed = min(len(self.waiting), self.num_sequences - len(self.running))
        return sum(not one.is_generating for one in self.running.values()) + num_postponed

    def _burst(self) -> int:
        """Return the size of the largest burst of which a prompt is left."""
        return max([self._num_prompts(), *(one.burst for one in self.running.values() if not one.is_generating)])

    def _chunks(self, room: int, *, is_even: bool) -> Plan:
        """Return prompt chunks of up to `room` tokens, oldest first; is_even: only chunks as long as the first."""
        rows = self.scored_rows
        chunks: Plan = {}
        for seq_id, one in self.running.items():
            num_tokens = 0 if one.is_generating else one.chunk(min(room, rows) if one.is_scored else room)
            first = next(iter(chunks.values()), num_tokens) if is_even else num_tokens
            if 0 < first <= num_tokens:
                chunks[seq_id] = first
                room -= first
                rows -= first if one.is_scored else 0
        return chunks

    def computed(self, plan: Plan) -> None:
        """Count a computed batch, and lift the limit that a full KV cache had set.

        After a limited batch its sequences move to the end of the order, so that the others get their turn.
        """
        if plan is self._steady:
            return
        for seq_id, num_tokens in plan.items():
            if not self.running[seq_id].is_generating:
                self.running[seq_id].num_computed += num_tokens
            if self._limit is not None:
                self.running[seq_id] = self.running.pop(seq_id)
        self._limit = None

    def refused(self, plan: Plan) -> int | None:
        """Halve the next batch, as the KV cache had no slot for `plan`; returns a sequence that cannot run at all."""
        self._steady = None
        size = sum(plan.values())
        if size == 1:
            self._limit = None
            return next(iter(plan))
        self._limit = size // 2
        return None


def _tokens_a_pass(plan: Plan) -> float:
    """Return a plan's tokens per pass over the weights: in a pass llama.cpp takes equally many of each sequence."""
    return sum(plan.values()) / max(len(set(plan.values())), 1)
