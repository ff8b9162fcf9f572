"""Bare loop: the minimum that any program must do, llama_decode and llama.cpp's sampler chain.

Without figures, scheduler or text, it is the reference for our own loop. `engine.llama.arm` defines its protocol.
"""

import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import llama_cpp.llama_cpp as llama

from engine.llama.arm import Answer, Ask, LoadArm, Parts, check_code, run
from engine.llama.context import Context
from engine.llama.model import Model


@dataclass
class Stream:
    """One sequence: its prompt, its sampler chain, the token to compute next and the times of its drawn tokens."""

    seq_id: int
    ids: list[int]
    chain: Any
    token: int = -1
    times: list[float] = field(default_factory=list)


class BareLoop:
    """Runtime that computes whole prompts in full batches, then one token of every stream per step."""

    def __init__(self, load: LoadArm) -> None:
        self._model = Model(load.model, load.spec)
        self._context = Context(self._model, load.spec, load.threads, load.threads_batch)
        self._room = load.spec.resolved_n_batch
        self._batch = llama.llama_batch_init(self._room, 0, 1)
        self._parts = Parts()
        self.vocab = self._model.vocab
        tokens = range(self._model.num_vocab)
        self._ends = [token for token in tokens if llama.llama_vocab_is_eog(self.vocab, token)]

    def answer(self, ask: Ask) -> Answer:
        """Run the streams; the clock starts once their first `depth` ids are computed."""
        self._parts = Parts()
        chains = [self._chain(ask, number) for number in range(len(ask.prompts))]
        llama.llama_memory_clear(self._context.memory, True)
        if ask.depth:
            heads = [Stream(number, ids[: ask.depth], None) for number, ids in enumerate(self._ids(ask))]
            self._prefill(heads, 0, draws=False)
            self._parts = Parts()
        submitted = time.monotonic()
        streams = [Stream(number, ids, chains[number]) for number, ids in enumerate(self._ids(ask))]
        self._prefill(streams, ask.depth, draws=True)
        self._generate(streams, ask)
        wall_s = time.monotonic() - submitted
        for chain in chains:
            llama.llama_sampler_free(chain)
        num_prompt = [len(stream.ids) - ask.depth for stream in streams]
        return Answer(submitted, wall_s, num_prompt, [stream.times for stream in streams], self._parts)

    def close(self) -> None:
        """Free batch, context and model."""
        llama.llama_batch_free(self._batch)
        self._context.close()
        self._model.close()

    def _ids(self, ask: Ask) -> list[list[int]]:
        began = time.perf_counter()
        ids = [self._model.tokenize(prompt) if isinstance(prompt, str) else prompt for prompt in ask.prompts]
        self._parts.tokenise_s += time.perf_counter() - began
        return ids

    def _chain(self, ask: Ask, number: int) -> Any:
        """Return a chain of llama.cpp's default stages in order; bans the end of sequence if it is to be ignored."""
        barred = self._ends if ask.ignores_end else []
        bans = [llama.llama_logit_bias(token, float("-inf")) for token in barred]
        biases = (llama.llama_logit_bias * len(bans))(*bans)
        stages = (
            llama.llama_sampler_init_logit_bias(self._model.num_vocab, len(barred), biases),
            llama.llama_sampler_init_top_k(40),
            llama.llama_sampler_init_top_p(0.95, 1),
            llama.llama_sampler_init_min_p(0.05, 1),
            llama.llama_sampler_init_temp(0.8),
            llama.llama_sampler_init_dist(ask.seed + number),
        )
        chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        for stage in stages:
            llama.llama_sampler_chain_add(chain, stage)
        return chain

    def _prefill(self, streams: list[Stream], first: int, *, draws: bool) -> None:
        """Compute the prompts from position `first` on and, if `draws`, draw each stream's first token."""
        ready: list[tuple[Stream, int]] = []
        self._batch.n_tokens = 0
        for stream in streams:
            last = len(stream.ids) - 1
            for position in range(first, last + 1):
                if self._batch.n_tokens == self._room:
                    self._compute(ready)
                if draws and position == last:
                    ready.append((stream, self._batch.n_tokens))
                self._put(stream.seq_id, stream.ids[position], position, draws and position == last)
        self._compute(ready)

    def _compute(self, ready: list[tuple[Stream, int]]) -> None:
        self._parts.prefill_s += self._run()
        self._draw(ready)
        ready.clear()
        self._batch.n_tokens = 0

    def _generate(self, streams: list[Stream], ask: Ask) -> None:
        """Draw one token of every stream per step until each has its number, or has ended if ends are not ignored."""
        ends = set() if ask.ignores_end else set(self._ends)
        going = [stream for stream in streams if stream.token not in ends]
        for number in range(ask.num_generated - 1):
            if not going:
                return
            self._batch.n_tokens = 0
            for stream in going:
                self._put(stream.seq_id, stream.token, len(stream.ids) + number, True)
            self._parts.decode_s += self._run()
            self._draw((stream, row) for row, stream in enumerate(going))
            if ends:
                going = [stream for stream in going if stream.token not in ends]

    def _put(self, seq_id: int, token: int, position: int, has_logits: bool) -> None:
        batch, here = self._batch, self._batch.n_tokens
        batch.token[here], batch.pos[here] = token, position
        batch.n_seq_id[here], batch.seq_id[here][0] = 1, seq_id
        batch.logits[here] = has_logits
        batch.n_tokens = here + 1

    def _run(self) -> float:
        """Decode the batch; return the seconds it took."""
        began = time.perf_counter()
        code = llama.llama_decode(self._context.handle, self._batch)
        took = time.perf_counter() - began
        check_code(code)
        return took

    def _draw(self, rows: Iterable[tuple[Stream, int]]) -> None:
        """Draw the next token of each stream from its row; llama_sampler_sample also accepts it."""
        began = time.perf_counter()
        for stream, row in rows:
            stream.token = llama.llama_sampler_sample(stream.chain, self._context.handle, row)
            stream.times.append(time.monotonic())
        self._parts.sample_s += time.perf_counter() - began


def main(end: socket.socket) -> None:
    """Answer requests with this runtime."""
    run(end, BareLoop)
