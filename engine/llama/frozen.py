"""Frozen logits: what other sampling parameters draw from the candidates that steps have kept, without the model.

The candidates run through llama.cpp's own sampler chain in a child process, with the random number of each step. The
tokens outside them are known by their probability alone; a result that depends on one of them is not exact.
"""

import threading
import weakref
from typing import Self

import numpy as np
import numpy.typing as npt

from engine.errors import ConfigError
from engine.llama.sandbox import LIMITS
from engine.process.channel import Message
from engine.process.program import Service
from engine.specs import Sampling
from engine.stages import BEYOND_CANDIDATES, stages_of
from engine.steps import INSPECTED, StepTable

DEADLINE_S = 10.0
MAX_STEPS = 100_000


class FrozenSteps(Message, frozen=True):
    """Recorded candidates and random numbers of some steps.

    ids: all tokens up to the last step's, of which those from `first` on are the steps'. top_ids (int32) and logits
    (float32): the k candidates of each step, most probable first. draws: the random numbers; others: the probability of
    all tokens outside the candidates.
    """

    num_vocab: int
    ids: list[int]
    first: int
    k: int
    top_ids: bytes
    logits: bytes
    draws: list[float]
    others: list[float]

    @classmethod
    def of(cls, prompt_ids: list[int], steps: StepTable, here: slice) -> Self:
        """Return some steps of a trial. Raises ConfigError where they have no candidates, or were not drawn."""
        first, last, _ = here.indices(len(steps))
        records = steps.records[here]
        if not steps.k or not len(records) or not (records["flags"] & INSPECTED).all():
            raise ConfigError("no candidates were recorded with this trial, so it cannot be sampled again")
        if np.isnan(records["draw"]).any():
            raise ConfigError("a token of this trial was not drawn, so it cannot be sampled again")
        if len(records) > MAX_STEPS:
            raise ConfigError(f"{len(records):,} steps; at most {MAX_STEPS:,} are sampled again at once")
        logprobs = steps.top_logprobs[here].astype(np.float64)
        logits: npt.NDArray[np.float32] = (logprobs + records["normaliser"][:, None]).astype(np.float32)
        others = np.maximum(0, 1 - np.exp(logprobs).sum(axis=1))
        ids = [*prompt_ids, *steps.ids[:last]]
        return cls(
            len(steps.vocabulary), ids, len(prompt_ids) + first, steps.k, steps.top_ids[here].tobytes(),
            logits.tobytes(), records["draw"].tolist(), others.tolist(),
        )  # fmt: skip


class Resample(Message, frozen=True):
    """Sample the steps again with these parameters, each after the tokens that it followed."""

    steps: FrozenSteps
    sampling: Sampling


class Resampled(Message, frozen=True):
    """Result of each step: its token, -1 where it is outside the candidates; the candidates left; `p_final`, float32
    (n, k), as in StepTable; whether all of it is exact."""

    ids: list[int]
    num_kept: list[int]
    p_final: bytes
    is_exact: list[bool]


class FindFlips(Message, frozen=True):
    """Find for one step how far each parameter may move before another token is drawn."""

    steps: FrozenSteps
    sampling: Sampling


class Flip(Message, frozen=True):
    """With the same random number, token `id` is drawn where the parameter is above `value`, or below it."""

    parameter: str
    is_above: bool
    value: float
    id: int


class Flips(Message, frozen=True):
    """Answer to FindFlips."""

    found: list[Flip]


class Resampler:
    """Client of a child process that samples steps again, started by the first call. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._service: Service | None = None

    def resample(self, steps: FrozenSteps, sampling: Sampling) -> Resampled:
        """Sample steps again. Raises ConfigError for stages in BEYOND_CANDIDATES, LimitExceeded, WorkerDied."""
        _check(sampling)
        answer: Resampled = self._running().ask(Resample(steps, sampling), DEADLINE_S)
        return answer

    def flips(self, steps: FrozenSteps, sampling: Sampling) -> list[Flip]:
        """Return how far temperature, top_k, top_p and min_p may move before one step draws another token.

        Directions in which nothing changes, or the candidates do not tell, are left out; so are all where the step's
        own token is not drawn again. Raises as `resample`.
        """
        _check(sampling)
        answer: Flips = self._running().ask(FindFlips(steps, sampling), DEADLINE_S)
        return answer.found

    def close(self) -> None:
        """Terminate the process. Safe to call twice."""
        with self._lock:
            service, self._service = self._service, None
        if service is not None:
            service.close()

    def _running(self) -> Service:
        with self._lock:
            if self._service is None:
                self._service = Service(
                    "engine.llama.frozen_program",
                    does="samples steps again",
                    answers=Resampled | Flips,
                    limits=LIMITS,
                )
                weakref.finalize(self, self._service.close)
            return self._service


def _check(sampling: Sampling) -> None:
    refused = [name for name in BEYOND_CANDIDATES if name in stages_of(sampling)]
    if refused:
        raise ConfigError(
            f"steps sampled with {refused[0]} cannot be sampled again: they depend on more than their candidates"
        )
