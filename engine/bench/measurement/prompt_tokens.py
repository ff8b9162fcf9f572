"""Tokens of random prompts: token ids, or for servers that take none, the words of texts of known length."""

import re
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from engine.bench.measurement.clients import Prompt
from engine.vocabulary import TokenKind, Vocabulary

_WORD = re.compile(rb" [a-z]{2,12}")
FEWEST_WORDS = 100
_COMMON = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend"
)
"""Words that most tokenizers have as one token each."""


class PromptTokens(NamedTuple):
    """Tokens that random prompts are made of.

    vocabulary: their bytes; ids: those that are drawn, shape (n,); ends: those that end a text; is_text: a prompt is
    sent as the text of its tokens; has_length: whether that text has as many tokens.
    """

    vocabulary: Vocabulary
    ids: npt.NDArray[np.int64]
    ends: tuple[int, ...]
    is_text: bool = False
    has_length: bool = True

    @classmethod
    def of_ids(cls, vocabulary: Vocabulary) -> Self:
        """Return all tokens but control tokens, whose ids are sent."""
        kinds = np.frombuffer(vocabulary.kinds, np.uint8)
        ids = np.flatnonzero(kinds & TokenKind.CONTROL == 0)
        return cls(vocabulary, ids, tuple(np.flatnonzero(kinds & TokenKind.END).tolist()))

    @classmethod
    def of_words(cls, vocabulary: Vocabulary) -> Self:
        """Return the tokens that are a whole word with the space before it, else common words, sent as texts.

        A text of them has one token for each word, and the one with which texts begin.
        """
        words = [token for token, piece in enumerate(vocabulary.pieces) if _WORD.fullmatch(piece)]
        if len(words) < FEWEST_WORDS:
            return cls.of_common_words()
        return cls(vocabulary, np.array(words), (), is_text=True)

    @classmethod
    def of_common_words(cls) -> Self:
        """Return common English words, for a server whose vocabulary is not known, sent as texts."""
        pieces = tuple(f" {word}".encode() for word in _COMMON.split())
        table = Vocabulary(pieces, bytes(len(pieces)), {}, None, add_bos=False, add_space_prefix=True)
        return cls(table, np.arange(len(pieces)), (), is_text=True, has_length=False)

    def prompt(self, random: np.random.Generator, length: int) -> Prompt:
        """Return a prompt of `length` random tokens, counted with the BOS that the model adds."""
        ids = self.starting(random, length)
        if not self.is_text:
            return ids
        has_bos = length > 1 and ids[0] == self.vocabulary.bos
        return self.vocabulary.join(ids[1:] if has_bos else ids).decode().strip()

    def starting(self, random: np.random.Generator, length: int) -> list[int]:
        """Return `length` random ids for the start of a context; the first is BOS if the model adds it."""
        ids, bos = self.ids_of(random, length), self.vocabulary.bos
        return ids if bos is None or not self.vocabulary.add_bos else [bos, *ids[1:]][:length]

    def ids_of(self, random: np.random.Generator, length: int) -> list[int]:
        """Return `length` random ids."""
        ids: list[int] = self.ids[random.integers(0, len(self.ids), length)].tolist()
        return ids
