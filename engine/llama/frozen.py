"""Frozen logits: what other sampling parameters draw from the candidates that steps have kept, without the model.

The candidates run through llama.cpp's own sampler chain in a child process, with the random number of each step. The
tokens outside them are known by their probability alone; a result that depends on one of them is not exact.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Self

import numpy as np
import numpy.typing as npt

from engine.errors import ConfigError
from engine.llama.sandbox import LIMITS
from engine.process.channel import Message
from engine.process.program import Service
from engine.specs import Sampling
from engine.stages import BEYOND_CANDIDATES, stages_of
from engine.step_parts import FORCED, INSPECTED
from engine.steps import StepTable

DEADLINE_S = 10.0
MOST_CANDIDATES = 1 << 22
"""Candidates of all steps that are sampled again at once, at 20 bytes each: 16,384 steps with 256."""


class FrozenSteps(Message, frozen=True):
    """Recorded candidates and random numbers of some steps.

    ids: all generated tokens up to the last step's, of which those from `first` on are the steps'. top_ids (int32) and
    logits (float32): the k candidates of each step, most probable first. draws: the random numbers, NaN for a forced
    token; others: the probability of all tokens outside the candidates.
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
    def of(cls, steps: StepTable, here: slice) -> Self:
        """Return some steps of a trial. Raises ConfigError where they have no candidates, or were not drawn."""
        first, last, _ = here.indices(len(steps))
        records = steps.records[here]
        flags = records["flags"]
        if not steps.k or not len(records) or not (flags & (INSPECTED | FORCED)).all():
            raise ConfigError("no candidates were recorded with this trial, so it cannot be sampled again")
        if np.isnan(records["draw"][(flags & FORCED) == 0]).any():
            raise ConfigError("a token of this trial was not drawn, so it cannot be sampled again")
        if (most := MOST_CANDIDATES // steps.k) < len(records):
            raise ConfigError(
                f"{len(records):,} steps with {steps.k:,} candidates; at most {most:,} are sampled again at once"
            )
        logprobs = steps.top_logprobs[here].astype(np.float64)
        logits: npt.NDArray[np.float32] = (logprobs + records["normaliser"][:, None]).astype(np.float32)
        others = np.maximum(0, 1 - np.exp(logprobs).sum(axis=1))
        return cls(
            len(steps.vocabulary), steps.ids[:last], first, steps.k, steps.top_ids[here].tobytes(), logits.tobytes(),
            records["draw"].tolist(), others.tolist(),
        )  # fmt: skip


class Resample(Message, frozen=True):
    """Sample the steps again with these parameters, each after the tokens that it followed.

    steps: None for those of an earlier request that had the same name. shown: the step whose distribution is wanted.
    """

    name: str
    steps: FrozenSteps | None
    sampling: Sampling
    shown: int | None


class NotKept(Message, frozen=True):
    """Answer where the steps of an earlier request are not kept any more."""


class Resampled(Message, frozen=True):
    """Result of each step: its token, -1 where it is outside the candidates, and whether it is exact.

    num_kept and p_final: candidates left at the step that is shown, and the k probabilities just before the draw
    (float32), as in StepTable; 0 and empty where none is, or it is forced.
    """

    ids: list[int]
    is_exact: list[bool]
    num_kept: int
    p_final: bytes


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

    def resample(
        self, name: str, steps: Callable[[], FrozenSteps], sampling: Sampling, shown: int | None = None
    ) -> Resampled:
        """Sample steps again, which `name` stands for; `steps` is called where the process does not have them yet.

        shown: the step whose distribution is wanted. Raises ConfigError for stages in BEYOND_CANDIDATES, LimitExceeded,
        WorkerDied.
        """
        _check(sampling)
        answer: Resampled | NotKept = self._running().ask(Resample(name, None, sampling, shown), DEADLINE_S)
        if isinstance(answer, NotKept):
            answer = self._running().ask(Resample(name, steps(), sampling, shown), DEADLINE_S)
        assert isinstance(answer, Resampled)
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
                    answers=Resampled | NotKept | Flips,
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
