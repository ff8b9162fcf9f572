"""Who computes how many tokens in the next decode. Integers in, a plan out: no model, no clock.

Each step the scheduler says for every sequence that takes part how many of its tokens go into the batch: one for a
sequence that generates, a chunk of its prompt for one that does not yet. While any sequence generates, each prompt
brings at most `prefill_share` tokens to a step, so that a long one cannot stall the streams, while a crowd of them is
not kept waiting for a few; alone, and at most, prompts get `n_ubatch`. The oldest prompt is served first. New jobs join
whenever a sequence is free. A plan is in the order of its sequences: llama.cpp computes those together of which each is
the one after the last, and the others in passes of their own; and of those together it takes equally many tokens in a
pass, so that each other length is a pass more (llama-batch.cpp, split_equal). So the room that the oldest prompt leaves
is only filled where that gives more tokens for each pass; else it goes to chunks as long as the first, or to none.
"""

from collections import deque
from dataclasses import dataclass, field

Plan = dict[int, int]
"""Tokens of the next batch by sequence."""


@dataclass
class Track:
    """One sequence's progress: prompt tokens in all and computed so far, one at a time from `single_from` on."""

    num_prompt: int
    num_computed: int
    single_from: int
    is_scored: bool

    @property
    def is_generating(self) -> bool:
        """True once the whole prompt has been computed."""
        return self.num_computed >= self.num_prompt

    def chunk(self, budget: int) -> int:
        """Prompt tokens to take out of `budget`."""
        if self.num_computed >= self.single_from:
            return min(1, budget)
        return min(self.single_from - self.num_computed, budget)


@dataclass
class Scheduler:
    """State of one worker: `waiting` jobs in order of arrival, `tracks` by sequence in order of admission."""

    num_sequences: int
    n_batch: int
    n_ubatch: int
    prefill_share: int = 32
    scored_rows: int = 32
    waiting: deque[int] = field(default_factory=deque)
    tracks: dict[int, Track] = field(default_factory=dict)
    _limit: int | None = None
    _steady: Plan | None = None

    @property
    def is_idle(self) -> bool:
        """True when there is nothing to compute and nothing waits."""
        return not self.waiting and not self.tracks

    def enqueue(self, job: int) -> None:
        """Put a job at the end of the queue."""
        self.waiting.append(job)

    def drop(self, job: int) -> bool:
        """Take a waiting job out of the queue; False if it does not wait."""
        if job not in self.waiting:
            return False
        self.waiting.remove(job)
        return True

    def next_job(self) -> int | None:
        """The job that a free sequence may take now, removed from the queue."""
        if self.waiting and len(self.tracks) < self.num_sequences:
            return self.waiting.popleft()
        return None

    def postpone(self, job: int) -> None:
        """Put a job back to the head of the queue; those behind it wait with it, as the oldest is served first."""
        self.waiting.appendleft(job)

    def admit(
        self,
        sequence: int,
        num_prompt: int,
        num_cached: int = 0,
        *,
        single_from: int | None = None,
        scored: bool = False,
    ) -> None:
        """Give a sequence its prompt, of which `num_cached` tokens are in the cache already.

        `scored`: every token wants its logits; all scored prompts together get `scored_rows` tokens of a step.
        """
        self._steady = None
        single_from = num_prompt if single_from is None else single_from
        self.tracks[sequence] = Track(num_prompt, num_cached, single_from, scored)

    def release(self, sequence: int) -> None:
        """The sequence's job is over."""
        self._steady = None
        del self.tracks[sequence]

    def move(self, source: int, target: int) -> None:
        """The job on sequence `source` goes on as it is on `target`."""
        self._steady = None
        self.tracks = {target if sequence == source else sequence: track for sequence, track in self.tracks.items()}

    @property
    def is_steady(self) -> bool:
        """True where all sequences generate and no job has come or gone since the last plan."""
        return self._steady is not None

    def plan(self) -> Plan:
        """The next batch, not to be changed; empty when no sequence has anything to compute.

        Where all sequences generate it is the one before, until a job comes or goes.
        """
        if self._steady is not None:
            return self._steady
        generating = [sequence for sequence, track in self.tracks.items() if track.is_generating]
        if self._limit is not None:
            generating = generating[: self._limit]
        plan = dict.fromkeys(generating, 1)
        if len(plan) == len(self.tracks) and self._limit is None:
            self._steady = dict(sorted(plan.items()))
            return self._steady
        num_postponed = min(len(self.waiting), self.num_sequences - len(self.tracks))
        num_prompts = sum(not track.is_generating for track in self.tracks.values()) + num_postponed
        share = self.prefill_share * num_prompts if generating else self.n_ubatch
        room = min(share, self.n_ubatch, self.n_batch - len(plan))
        if self._limit is not None:
            room = min(room, self._limit - len(plan))
        filled, even = (plan | self._chunks(room, is_even=is_even) for is_even in (False, True))
        return dict(sorted((even if _tokens_a_pass(even) > _tokens_a_pass(filled) else filled).items()))

    def _chunks(self, room: int, *, is_even: bool) -> Plan:
        """Chunks of prompts for `room` tokens, the oldest first; even: only those as long as the first one."""
        rows = self.scored_rows
        chunks: Plan = {}
        for sequence, track in self.tracks.items():
            num_tokens = 0 if track.is_generating else track.chunk(min(room, rows) if track.is_scored else room)
            first = next(iter(chunks.values()), num_tokens) if is_even else num_tokens
            if 0 < first <= num_tokens:
                chunks[sequence] = first
                room -= first
                rows -= first if track.is_scored else 0
        return chunks

    def computed(self, plan: Plan) -> None:
        """The batch of `plan` was computed: count it, and lift the limit that a full cache had set.

        After a limited batch its sequences go to the end of the order, so that the others get their turn.
        """
        if plan is self._steady:
            return
        for sequence, num_tokens in plan.items():
            track = self.tracks[sequence]
            if not track.is_generating:
                track.num_computed += num_tokens
            if self._limit is not None:
                self.tracks[sequence] = self.tracks.pop(sequence)
        self._limit = None

    def refused(self, plan: Plan) -> int | None:
        """The cache had no slot for `plan`: halve the next batch. A sequence is returned when it cannot run at all."""
        self._steady = None
        size = sum(plan.values())
        if size == 1:
            self._limit = None
            return next(iter(plan))
        self._limit = size // 2
        return None


def _tokens_a_pass(plan: Plan) -> float:
    """Tokens of a plan for each pass over the weights: llama.cpp takes equally many of all sequences at a time."""
    return sum(plan.values()) / max(len(set(plan.values())), 1)
