"""GBNF grammars and JSON schemas as one llama.cpp sampler that is never given a token it would abort on."""

import json
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np

from engine.errors import ConfigError
from engine.llama.candidates import Candidates
from engine.llama.library import not_null
from engine.specs import Sampling


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
        self._alone = Candidates(1)

    def allows(self, token: int) -> bool:
        """True if the grammar can go on with `token`; asked on an array of one."""
        row = self._alone.take(1)
        row[0] = (token, 1.0, 0.0)
        self.restrict(self._alone)
        return bool(np.isfinite(row["logit"][0]))

    def restrict(self, candidates: Candidates) -> None:
        """Set the logits of all forbidden candidates to -inf."""
        llama.llama_sampler_apply(self._handle, candidates.pointer)

    def accept(self, token: int) -> None:
        """Go on with `token`; raises ConfigError where the grammar forbids it (llama.cpp itself would abort)."""
        if not self.allows(token):
            raise ConfigError(f"the grammar does not allow token {token} at this place")
        llama.llama_sampler_accept(self._handle, token)

    def close(self) -> None:
        """Free the grammar."""
        llama.llama_sampler_free(self._handle)
