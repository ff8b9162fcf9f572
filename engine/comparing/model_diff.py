"""Difference of two models at the tokens of one text: change of log-probability, KL divergence, greedy choice."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.errors import quoted
from engine.steps import StepTable
from engine.units import counted, exact, significant
from engine.vocabulary import Vocabulary, readable

CONTEXT_TOKENS = 12
"""Tokens before a changed one that are shown with it."""

ROUNDING = 1e-6
"""Nats: two ways to compute the same network in 32-bit floats differ by less, mean over a text."""

Figures = npt.NDArray[np.float64]


class ChangedToken(NamedTuple):
    """A token whose log-probability changed. position: among the compared tokens, from 0; before: the text before it.

    logprob, other_logprob: in nats, by the first and the other model; change: the second minus the first; kl: nats;
    best, other_best: the most probable token of each model.
    """

    position: int
    before: str
    text: str
    logprob: float
    other_logprob: float
    change: float
    kl: float
    best: str
    other_best: str


@dataclass(frozen=True)
class ModelDiff:
    """Figures of the same n tokens by two models, each given the tokens before it.

    steps, other_steps: by the first model and by the other one. kl: KL(first || other) over the whole vocabulary at
    each token, in nats, shape (n,). ids: all tokens of the text, of which the last n are compared; is_prompt: they are
    a prompt's.
    """

    steps: StepTable
    other_steps: StepTable
    kl: Figures
    ids: tuple[int, ...]
    is_prompt: bool

    @property
    def change(self) -> Figures:
        """Change of each token's log-probability, in nats: negative where the other model finds it less probable."""
        ours, theirs = self.steps.records["logprob"], self.other_steps.records["logprob"]
        with np.errstate(invalid="ignore"):
            return np.where(ours == theirs, 0.0, theirs - ours)

    @property
    def is_flipped(self) -> npt.NDArray[np.bool_]:
        """Whether the most probable token differs at each token."""
        flipped: npt.NDArray[np.bool_] = self.steps.top_ids[:, 0] != self.other_steps.top_ids[:, 0]
        return flipped

    @property
    def num_flips(self) -> int:
        """How often the most probable token differs."""
        return int(self.is_flipped.sum())

    @property
    def first_flip(self) -> int | None:
        """Position of the first token at which the most probable token differs; None where it never does."""
        flips = np.flatnonzero(self.is_flipped)
        return int(flips[0]) if len(flips) else None

    @property
    def kl_mean(self) -> float:
        """Mean KL divergence of a token, in nats."""
        return float(self.kl.mean())

    @property
    def kl_max(self) -> float:
        """Largest KL divergence of a token, in nats."""
        return float(self.kl.max())

    @property
    def change_max(self) -> float:
        """Largest change of a log-probability, up or down, in nats."""
        return float(np.abs(self.change).max())

    @property
    def perplexity(self) -> float:
        """Perplexity of the tokens by the first model."""
        return _perplexity(self.steps)

    @property
    def other_perplexity(self) -> float:
        """Perplexity of the tokens by the other model."""
        return _perplexity(self.other_steps)

    @property
    def sentence(self) -> str:
        """The difference, in a sentence."""
        tokens = counted(len(self.steps), "prompt token" if self.is_prompt else "token")
        if not self.kl.any():
            return f"No difference: both distributions are the same at all {tokens}."
        kl = f"{kl_text(self.kl_mean)} nats ({kl_text(self.kl_mean / math.log(2))} bits) per token"
        if self.first_flip is None:
            return f"KL {kl}; the most probable token is the same at all {tokens}."
        return (
            f"KL {kl}; the most probable token differs at {self.num_flips:,} of {tokens}, first at token "
            f"{self.first_flip + 1:,}."
        )

    def most_changed(self, limit: int) -> list[ChangedToken]:
        """Return the tokens whose log-probability changed most, up or down, first the largest change."""
        change = self.change
        order = np.argsort(-np.abs(change), kind="stable")[:limit]
        return self._changed([position for position in order.tolist() if change[position]])

    def changed(self) -> list[ChangedToken]:
        """Return all tokens, in order."""
        return self._changed(range(len(self.steps)))

    def _changed(self, positions: Iterable[int]) -> list[ChangedToken]:
        vocabulary, first, change = self.steps.vocabulary, len(self.ids) - len(self.steps), self.change
        logprobs, others = (table.records["logprob"].tolist() for table in (self.steps, self.other_steps))
        best, other_best = (table.top_ids[:, 0].tolist() for table in (self.steps, self.other_steps))
        return [
            ChangedToken(
                at,
                readable(vocabulary.join(self.ids[max(first + at - CONTEXT_TOKENS, 0) : first + at])),
                vocabulary.text(self.ids[first + at]),
                logprobs[at],
                others[at],
                float(change[at]),
                float(self.kl[at]),
                vocabulary.text(best[at]),
                vocabulary.text(other_best[at]),
            )
            for at in positions
        ]


def kl_text(value: float) -> str:
    """Return a KL divergence for people: one of rounding errors alone by its bound, as its zeros cannot be counted."""
    return f"below {exact(ROUNDING)}" if 0 < value < ROUNDING else significant(value)


def _perplexity(steps: StepTable) -> float:
    return math.exp(-float(steps.records["logprob"].mean()))


def vocabulary_difference(ours: Vocabulary, theirs: Vocabulary) -> str:
    """Return what distinguishes two vocabularies, as the end of a sentence; empty where every id is the same token."""
    parts = [f"{len(ours):,} tokens against {len(theirs):,}"] if len(ours) != len(theirs) else []
    first = next(_differing(ours, theirs), None)
    if first is not None:
        texts = [quoted(vocabulary.text(first)) for vocabulary in (ours, theirs)]
        parts.append(f"token {first:,} is {texts[0]} in one and {texts[1]} in the other")
    return ", and ".join(parts)


def _differing(ours: Vocabulary, theirs: Vocabulary) -> Iterator[int]:
    if ours is theirs or ours.hash == theirs.hash:
        return
    for token in range(min(len(ours), len(theirs))):
        if ours.pieces[token] != theirs.pieces[token] or ours.names.get(token) != theirs.names.get(token):
            yield token
