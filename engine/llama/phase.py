"""Phases of a worker's loop, and which of them may take how long."""

from enum import IntEnum
from typing import Protocol


class Phase(IntEnum):
    """What the loop is at. DECODING is llama_decode and copies of the cache; PREPARING makes grammar and samplers."""

    IDLE = 0
    LOADING = 1
    SENDING = 2
    DECODING = 3
    TOKENISING = 4
    PREPARING = 5
    SAMPLING = 6

    @property
    def words(self) -> str:
        """The phase as the start of a sentence about what happened meanwhile; empty where nothing was computed."""
        return _WORDS[self]


IDLE, LOADING, SENDING, DECODING, TOKENISING, PREPARING, SAMPLING = map(int, Phase)
"""As plain numbers: arithmetic with members of an enumeration takes twice as long, and each token is stamped."""

_WORDS = {
    Phase.IDLE: "",
    Phase.LOADING: "loading the model",
    Phase.SENDING: "",
    Phase.DECODING: "computing (llama_decode)",
    Phase.TOKENISING: "tokenising",
    Phase.PREPARING: "preparing grammar and samplers",
    Phase.SAMPLING: "sampling",
}
LONGEST_S = {Phase.TOKENISING: 2.0, Phase.PREPARING: 2.0, Phase.SAMPLING: 2.0}
"""Seconds that a phase may stand; others may for ever: llama_decode takes as long as the batch is large, and a worker
that sends waits for its parent."""


class Stamp(Protocol):
    """Notes that a phase begins, for a job or for none."""

    def __call__(self, phase: int, job: int = 0) -> None: ...
