"""GBNF grammars and JSON schemas as one llama.cpp sampler that is never given a token it would abort on."""

import ctypes
import json
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from engine.errors import ConfigError
from engine.llama.library import not_null
from engine.specs import Sampling

CANDIDATE = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])


def gbnf_of(sampling: Sampling) -> str:
    """The grammar text that `sampling` asks for; empty for none. Raises ConfigError for a schema without a grammar."""
    if not sampling.json_schema:
        return sampling.grammar
    from llama_cpp.llama_grammar import json_schema_to_gbnf

    try:
        json.loads(sampling.json_schema)
        text: str = json_schema_to_gbnf(sampling.json_schema)
    except Exception as error:
        raise ConfigError(f"json_schema cannot be turned into a grammar: {error}") from error
    return text


class Grammar:
    """One grammar's state along one sequence. Raises ConfigError for a text that is no grammar with a root rule."""

    def __init__(self, vocab: Any, text: str) -> None:
        self._handle = not_null(
            llama.llama_sampler_init_grammar(vocab, text.encode(), b"root"),
            "grammar",
            "llama.cpp cannot parse it; it needs GBNF with a rule named root",
        )

    def allows(self, token: int) -> bool:
        """True if the grammar can go on with `token`; asked on an array of one."""
        alone = np.array([(token, 1.0, 0.0)], CANDIDATE)
        self.restrict(alone)
        return bool(np.isfinite(alone["logit"][0]))

    def restrict(self, candidates: npt.NDArray[np.void]) -> None:
        """Set the logits of all forbidden candidates to -inf."""
        array = candidate_array(candidates)
        llama.llama_sampler_apply(self._handle, array)

    def accept(self, token: int) -> None:
        """Go on with `token`; raises ConfigError where the grammar forbids it (llama.cpp itself would abort)."""
        if not self.allows(token):
            raise ConfigError(f"the grammar does not allow token {token} at this place")
        llama.llama_sampler_accept(self._handle, token)

    def close(self) -> None:
        """Free the grammar."""
        llama.llama_sampler_free(self._handle)


def candidate_array(candidates: npt.NDArray[np.void]) -> Any:
    """llama.cpp's view of an array of CANDIDATE rows, nothing selected."""
    pointer = ctypes.cast(candidates.ctypes.data, llama.llama_token_data_p)
    return llama.llama_token_data_array(data=pointer, size=len(candidates), selected=-1, sorted=False)
