"""What the programs of other arms share: one JSON line asks, one line answers, the model stays loaded in between.

The first line is a `Load`, each further one an `Ask`; both are answered by one object. The program ends when its
standard input does.
"""

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import llama_cpp.llama_cpp as llama

from engine.errors import EngineError, ModelError
from engine.specs import PoolSpec


@dataclass(frozen=True)
class Load:
    """The model and how it is run; cpus: cores to keep to, empty for all."""

    model: str
    spec: PoolSpec
    threads: int
    threads_batch: int
    cpus: list[int]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Load":
        """Read what `to_dict` wrote."""
        return cls(**values | {"spec": PoolSpec.from_dict(values["spec"])})

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "spec": self.spec.to_dict()}


@dataclass(frozen=True)
class Ask:
    """One request of each stream, all at once.

    prompts: texts or ids; their first `depth` ids are computed before the clock starts. num_generated: tokens each, at
    least one. ignores_end: go on behind an end of sequence.
    """

    prompts: list[str | list[int]]
    num_generated: int
    depth: int = 0
    seed: int = 0
    ignores_end: bool = True


@dataclass
class Parts:
    """Where the seconds of one answer went; what is left of wall_s is the program's own work."""

    tokenise_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    sample_s: float = 0.0


@dataclass
class Answer:
    """What one `Ask` took. token_times: moments of each stream's tokens, seconds on the monotonic clock.

    num_prompt: tokens of each stream's prompt that the clock saw. wall_s: from `submitted` until all was done.
    """

    submitted: float
    wall_s: float
    num_prompt: list[int]
    token_times: list[list[float]]
    parts: Parts = field(default_factory=Parts)


@dataclass
class Ready:
    """The model is loaded. began: when that began, on the monotonic clock; load_s: seconds that it took.

    num_vocab: size of the vocabulary; controls: ids that are no words; bos: the id that begins a text, None for none.
    """

    began: float
    load_s: float
    num_vocab: int
    controls: list[int]
    bos: int | None


class Arm(Protocol):
    """A way of running the model; `vocab` is llama.cpp's handle of its vocabulary."""

    vocab: Any

    def answer(self, ask: Ask) -> Answer: ...
    def close(self) -> None: ...


def serve(open_arm: Callable[[Load], Arm]) -> None:
    """Load, then answer every line until there are no more; a failure is answered with its class and text."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    arm: Arm | None = None
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)  # whatever a library prints must not come between the answers
        for line in sys.stdin:
            try:
                if arm is None:
                    arm, found = _load(open_arm, Load.from_dict(json.loads(line)))
                else:
                    found = asdict(arm.answer(Ask(**json.loads(line))))
            except EngineError as error:
                found = {"error": type(error).__name__, "text": str(error)}
            answers.write(json.dumps(found) + "\n")
    if arm is not None:
        arm.close()


def _load(open_arm: Callable[[Load], Arm], load: Load) -> tuple[Arm, dict[str, Any]]:
    if load.cpus:
        os.sched_setaffinity(0, load.cpus)
    began = time.monotonic()
    arm = open_arm(load)
    load_s = time.monotonic() - began
    gc.freeze()
    bos = llama.llama_vocab_bos(arm.vocab) if llama.llama_vocab_get_add_bos(arm.vocab) else -1
    num_vocab = llama.llama_vocab_n_tokens(arm.vocab)
    controls = [token for token in range(num_vocab) if _is_control(arm.vocab, token)]
    return arm, asdict(Ready(began, load_s, num_vocab, controls, bos if bos >= 0 else None))


def _is_control(vocab: Any, token: int) -> bool:
    """True for ids without text of their own; the same ids as in `Model.vocabulary`."""
    no_words = llama.LLAMA_TOKEN_ATTR_CONTROL | llama.LLAMA_TOKEN_ATTR_UNKNOWN
    return bool(llama.llama_vocab_get_attr(vocab, token) & no_words or llama.llama_vocab_is_eog(vocab, token))


def check_code(code: int) -> None:
    """Raise ModelError unless llama_decode succeeded."""
    if code:
        raise ModelError(f"llama_decode returned {code}: this prompt does not fit, or the context is unusable")
