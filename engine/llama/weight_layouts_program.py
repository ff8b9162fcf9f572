"""Child program that times decodes of one model with its weights repacked for this processor, and as in the file."""

import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress

from engine.errors import ModelError
from engine.llama.context import OK, Chunk, Context
from engine.llama.model import Model
from engine.llama.weight_layouts import NUM_PROMPT, NUM_STREAMS, Job, LayoutTimes, Timings
from engine.process.serving import serve
from engine.specs import PoolSpec

MOST_S = 8.0
"""Time after which nothing more is timed: a busy machine may take many times as long as a quiet one."""

_MOST_ROUNDS, _FEWEST_ROUNDS, _STEPS = 5, 2, 2
_AGREED = 1.15
"""Two best rounds further apart than this factor are those of a disturbed machine."""


def timings(job: Job) -> Timings | None:
    """Return the shortest times over interleaved rounds; None where the machine is too disturbed to tell.

    Raises ModelError where the model cannot be loaded or computed.
    """
    with ExitStack() as opened:
        contexts = [_context(job, opened, share_weights=share) for share in (False, True)]
        rounds: tuple[list[list[float]], list[list[float]]] = ([], [])
        deadline = time.perf_counter() + MOST_S
        with suppress(_OutOfTime):
            for _round in range(_MOST_ROUNDS):
                for context, found in zip(contexts, rounds, strict=True):
                    found.append(_one_round(context, deadline))
    repacked, as_in_file = (_shortest(found) for found in rounds)
    return Timings(repacked, as_in_file) if repacked and as_in_file else None


def _context(job: Job, opened: ExitStack, *, share_weights: bool) -> Context:
    spec = PoolSpec(parallel=NUM_STREAMS[-1], n_ctx=2 * NUM_PROMPT, share_weights=share_weights)
    model = opened.enter_context(closing(Model(job.model, spec)))
    return opened.enter_context(closing(Context(model, spec, job.threads, job.threads)))


def _one_round(context: Context, deadline: float) -> list[float]:
    """Return the seconds of the prompt and of each kind of step, the shortest of _STEPS. Raises _OutOfTime."""
    ids = range(1, NUM_PROMPT + 1)
    seconds = [_decode(context, [Chunk(0, ids, 0, 1)], deadline)]
    for num_streams in NUM_STREAMS:
        step = [Chunk(number, ids[:1], 0 if number else NUM_PROMPT, 1) for number in range(num_streams)]
        seconds.append(min(_decode(context, step, deadline) for _step in range(_STEPS)))
    return seconds


def _decode(context: Context, chunks: Sequence[Chunk], deadline: float) -> float:
    """Compute the chunks in place of what their sequences held from there on; return the seconds it took."""
    if time.perf_counter() > deadline:
        raise _OutOfTime
    for chunk in chunks:
        context.cut(chunk.seq_id, chunk.position)
    context.fill(chunks)
    began = time.perf_counter()
    code = context.decode()
    took = time.perf_counter() - began
    if code != OK:
        raise ModelError(f"llama_decode returned {code} for a synthetic model")
    return took


class _OutOfTime(Exception):
    """The time limit was reached."""


def _shortest(rounds: list[list[float]]) -> LayoutTimes | None:
    """Return the shortest time of each kind; None with too few rounds, or where the two shortest disagree."""
    ordered = [sorted(kind) for kind in zip(*rounds, strict=True)]
    if len(rounds) < _FEWEST_ROUNDS or any(second > _AGREED * first for first, second, *_more in ordered):
        return None
    prompt_s, *step_s = (first for first, *_more in ordered)
    return LayoutTimes(prompt_s, tuple(step_s))


def main(end: socket.socket) -> None:
    """Answer requests, of which there is only one kind."""
    serve(end, Job, timings)
