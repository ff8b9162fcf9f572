"""Weight layouts: timings of a model with weights repacked and as in its file, and the choice between them."""

import msgspec
import numpy as np

from engine.process.channel import Message

NUM_PROMPT = 128
"""Tokens of the prompt that is timed."""

NUM_STREAMS = (1, 8, 32)
"""Numbers of streams whose step, one token of each, is timed."""

NUM_GENERATED = 128
"""Tokens that each of the compared requests generates, after a prompt of NUM_PROMPT."""

LEAST_GAIN = 1.05
"""Weights stay as in the file where that is faster by this factor."""


class Job(Message, frozen=True):
    """Request: the model file, and the number of threads."""

    model: str
    threads: int


class LayoutTimes(msgspec.Struct, frozen=True):
    """Seconds of a prompt of NUM_PROMPT tokens, and of one step of each number in NUM_STREAMS."""

    prompt_s: float
    step_s: tuple[float, ...]


class Timings(msgspec.Struct, frozen=True):
    """Answer: the times in both layouts."""

    repacked: LayoutTimes
    as_in_file: LayoutTimes


def prefers_file(timings: Timings, parallel: int) -> bool:
    """Return whether `parallel` requests at once, of NUM_PROMPT and NUM_GENERATED tokens each, end LEAST_GAIN times as
    soon with the weights as in the file."""
    return seconds_of(timings.repacked, parallel) > LEAST_GAIN * seconds_of(timings.as_in_file, parallel)


def seconds_of(times: LayoutTimes, parallel: int) -> float:
    """Return the estimated seconds of `parallel` requests at once: steps are interpolated between the measured numbers
    of streams, and grow in proportion beyond the largest."""
    most = NUM_STREAMS[-1]
    step_s = float(np.interp(parallel, NUM_STREAMS, times.step_s)) * max(parallel / most, 1.0)
    return parallel * times.prompt_s + NUM_GENERATED * step_s
