"""Grammar sampler: llama.cpp's GBNF sampler, guarded against tokens on which it would abort."""

import time
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from engine.errors import ConfigError
from engine.llama.candidates import Candidates
from engine.llama.library import not_null
from engine.specs import MAX_RECORDED

MAX_CALL_S = 0.5
"""CPU seconds for one call into the parser, while all streams of the worker wait."""


class Grammar:
    """State of one grammar along one sequence; the text was checked before it reached this process.

    Raises ConfigError for a text that llama.cpp cannot parse or that has no root rule, which includes one that names
    tokens missing from this vocabulary; and when a call takes longer than MAX_CALL_S, as later ones may take even
    longer.
    """

    def __init__(self, vocab: Any, text: str) -> None:
        self._handle = not_null(
            llama.llama_sampler_init_grammar(vocab, text.encode(), b"root"),
            "grammar",
            "llama.cpp cannot parse it; it needs GBNF with a rule named root, and tokens that this model has",
        )
        self._alone, self._some = Candidates(1), Candidates(MAX_RECORDED)

    def allows(self, token: int) -> bool:
        """Return True if the grammar can continue with `token`; tested on an array of one candidate."""
        row = self._alone.take(1)
        row[0] = (token, 1.0, 0.0)
        self.restrict(self._alone)
        return bool(np.isfinite(row["logit"][0]))

    def forbids(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Return which of at most MAX_RECORDED tokens the grammar cannot continue with."""
        logits = self._some.fill(tokens, np.zeros(len(tokens), np.float32))
        self.restrict(self._some)
        return np.isneginf(logits)

    def restrict(self, candidates: Candidates) -> None:
        """Set the logits of all forbidden candidates to -inf."""
        began = time.thread_time()
        llama.llama_sampler_apply(self._handle, candidates.pointer)
        self._check_time(began)

    def accept(self, token: int) -> None:
        """Advance by `token`; raises ConfigError if the grammar forbids it (llama.cpp itself would abort)."""
        if not self.allows(token):
            raise ConfigError(f"the grammar does not allow token {token} at this position")
        began = time.thread_time()
        llama.llama_sampler_accept(self._handle, token)
        self._check_time(began)

    def _check_time(self, began: float) -> None:
        took_s = time.thread_time() - began
        if took_s > MAX_CALL_S:
            raise ConfigError(
                f"the grammar took {took_s:.1f} s for one token; at most {MAX_CALL_S:g} s are allowed, as all other "
                "streams wait meanwhile: rewrite it so that the next character determines the alternative"
            )

    def close(self) -> None:
        """Free the grammar."""
        llama.llama_sampler_free(self._handle)
