"""Request loop of the other runtimes' child programs: one `LoadArm`, then any number of `Ask` on the loaded model."""

import gc
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import llama_cpp.llama_cpp as llama

from engine.errors import ModelError
from engine.process.serving import serve
from engine.specs import PoolSpec


@dataclass(frozen=True)
class LoadArm:
    """Load order: the model and how it is run. cpus: cores to pin to, empty for all."""

    model: str
    spec: PoolSpec
    threads: int
    threads_batch: int
    cpus: list[int]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "LoadArm":
        """Read the values that `to_dict` returned."""
        return cls(**values | {"spec": PoolSpec.from_dict(values["spec"])})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, to be sent as a request."""
        return {**asdict(self), "spec": self.spec.to_dict()}


@dataclass(frozen=True)
class Ask:
    """Simultaneous requests, one per stream.

    prompts: texts or ids; their first `depth` ids are computed before the clock starts. num_generated: tokens for each,
    at least one. ignores_end: continue after an end of sequence.
    """

    prompts: list[str | list[int]]
    num_generated: int
    depth: int = 0
    seed: int = 0
    ignores_end: bool = True


@dataclass
class Parts:
    """Time breakdown of one answer, in seconds; the rest of wall_s is the program's own work."""

    tokenise_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    sample_s: float = 0.0


@dataclass
class Answer:
    """Measurements of one `Ask`. token_times: times of each stream's tokens, monotonic seconds.

    num_prompt: prompt tokens of each stream that were computed while the clock ran. wall_s: from `submitted` until all
    streams were done.
    """

    submitted: float
    wall_s: float
    num_prompt: list[int]
    token_times: list[list[float]]
    parts: Parts = field(default_factory=Parts)


@dataclass
class Ready:
    """Reply once the model is loaded. began: start of loading, monotonic seconds; load_s: its duration in seconds.

    num_vocab: size of the vocabulary; controls: ids without text of their own; bos: id that begins a text, or None.
    """

    began: float
    load_s: float
    num_vocab: int
    controls: list[int]
    bos: int | None


class Arm(Protocol):
    """A runtime for the model; `vocab` is llama.cpp's handle of its vocabulary."""

    vocab: Any

    def answer(self, ask: Ask) -> Answer: ...
    def close(self) -> None: ...


def run(end: socket.socket, open_arm: Callable[[LoadArm], Arm]) -> None:
    """Load the model named by the first request, then answer further requests until the parent hangs up."""
    arms: list[Arm] = []

    def answer(request: dict[str, Any]) -> Any:
        if arms:
            return arms[0].answer(Ask(**request))
        arm, ready = _load(open_arm, LoadArm.from_dict(request))
        arms.append(arm)
        return ready

    serve(end, dict[str, Any], answer)
    for arm in arms:
        arm.close()


def _load(open_arm: Callable[[LoadArm], Arm], load: LoadArm) -> tuple[Arm, Ready]:
    if load.cpus:
        os.sched_setaffinity(0, load.cpus)
    began = time.monotonic()
    arm = open_arm(load)
    load_s = time.monotonic() - began
    gc.freeze()
    bos = llama.llama_vocab_bos(arm.vocab) if llama.llama_vocab_get_add_bos(arm.vocab) else -1
    num_vocab = llama.llama_vocab_n_tokens(arm.vocab)
    controls = [token for token in range(num_vocab) if _is_control(arm.vocab, token)]
    return arm, Ready(began, load_s, num_vocab, controls, bos if bos >= 0 else None)


def _is_control(vocab: Any, token: int) -> bool:
    """Return True for ids without text of their own; the same ids as in `Model.vocabulary`."""
    no_words = llama.LLAMA_TOKEN_ATTR_CONTROL | llama.LLAMA_TOKEN_ATTR_UNKNOWN
    return bool(llama.llama_vocab_get_attr(vocab, token) & no_words or llama.llama_vocab_is_eog(vocab, token))


def check_code(code: int) -> None:
    """Raise ModelError unless llama_decode succeeded."""
    if code:
        raise ModelError(f"llama_decode returned {code}: this prompt does not fit, or the context is unusable")
