"""Phases of a worker's loop, and their time limits."""

from enum import IntEnum
from typing import Protocol


class Phase(IntEnum):
    """Phase of a worker's loop. DECODING: llama_decode and copies of the KV cache; PREPARING: grammar and samplers."""

    IDLE = 0
    LOADING = 1
    SENDING = 2
    DECODING = 3
    TOKENISING = 4
    PREPARING = 5
    SAMPLING = 6

    @property
    def words(self) -> str:
        """Description of the phase, to follow "while" in a message; empty if nothing is computed in it."""
        return _WORDS[self]


IDLE, LOADING, SENDING, DECODING, TOKENISING, PREPARING, SAMPLING = map(int, Phase)
"""As plain integers: arithmetic with enum members takes twice as long, and every token is stamped."""

_WORDS = {
    Phase.IDLE: "",
    Phase.LOADING: "loading the model",
    Phase.SENDING: "",
    Phase.DECODING: "computing (llama_decode)",
    Phase.TOKENISING: "tokenising",
    Phase.PREPARING: "preparing grammar and samplers",
    Phase.SAMPLING: "sampling",
}
LONGEST_S: dict[int, float] = {Phase.TOKENISING: 2.0, Phase.PREPARING: 2.0, Phase.SAMPLING: 2.0}
"""Time limits of phases, seconds. The others are unlimited: llama_decode takes as long as the batch is large, and a
worker that sends waits for its parent."""


class Stamp(Protocol):
    """Callback that records the beginning of a phase, for a job or for none (0)."""

    def __call__(self, phase: int, job: int = 0) -> None: ...
