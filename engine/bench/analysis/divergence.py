"""Divergence of two configurations: of their distributions on the same tokens and of their greedy answers."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.bench.measurement.answers import Answers, Ids
from engine.errors import ConfigError
from engine.units import counted, significant
from engine.vocabulary import Vocabulary

_LEAST_MASS = 1e-9
"""Remaining mass below this is rounding error of the 32-bit log-probabilities."""


class Divergence(NamedTuple):
    """Divergence of a configuration from its reference.

    kl_mean, kl_max: nats per token, over num_tokens tokens; first_difference: number of tokens that agree before the
    first difference, in the answer that diverges earliest (None: all are the same); num_different: of num_answers
    greedy answers.
    """

    kl_mean: float
    kl_max: float
    first_difference: int | None
    num_tokens: int
    num_different: int
    num_answers: int

    @property
    def facts(self) -> dict[str, float]:
        """The figures by name, as CellRecord.facts stores them; first_difference only where there is one."""
        found = {"kl_mean": self.kl_mean, "kl_max": self.kl_max, "num_different": float(self.num_different)}
        return found if self.first_difference is None else {**found, "first_difference": float(self.first_difference)}

    @property
    def sentence(self) -> str:
        """The figures as a sentence."""
        kl = (
            f"KL {significant(self.kl_mean)} nats per token, {significant(self.kl_max)} at most, "
            f"over {counted(self.num_tokens, 'token')}"
        )
        if self.first_difference is None:
            return f"Answers match the reference: all {self.num_answers:,} greedy answers are the same ({kl})."
        return (
            f"Answers differ from the reference: {self.num_different:,} of {self.num_answers:,} greedy answers, "
            f"the first at token {self.first_difference + 1:,} ({kl})."
        )


def divergence(reference: Answers, other: Answers) -> Divergence:
    """Return the divergence of `other` from `reference`; raises ConfigError unless both have the same forced ids.

    KL(reference || other) for each token, over the candidates that both recorded and the remaining mass as one more:
    never more than the KL over the whole vocabulary, and equal to it where all of it was recorded.
    """
    if reference.forced != other.forced:
        raise ConfigError(
            "these answers are to different tokens: compute the second ones with answers(pool, reference)"
        )
    kl = _kl(reference, other)
    parted = [
        _num_equal(ours, theirs) for ours, theirs in zip(reference.greedy, other.greedy, strict=True) if ours != theirs
    ]
    return Divergence(
        float(kl.mean()), float(kl.max()), min(parted, default=None), len(kl), len(parted), len(reference.greedy)
    )


def divergence_of_texts(reference: Answers, vocabulary: Vocabulary, texts: Sequence[str]) -> dict[str, float]:
    """Return how far the texts of a server are from the greedy answers of a reference, as CellRecord.facts stores it.

    By their bytes, as a server may have other tokens, and without the spaces around them, some of which servers drop;
    first_difference counts tokens of the reference. vocabulary: of the reference. No log-probabilities are compared.
    """
    parted = []
    for ids, text in zip(reference.greedy, texts, strict=True):
        whole = vocabulary.join(ids).decode("utf-8", "replace")
        wanted, found = whole.lstrip(), text.lstrip()
        if wanted.rstrip() != found.rstrip():
            num_stripped = len(whole.encode()) - len(wanted.encode())
            same = num_stripped + _num_equal(tuple(wanted.encode()), tuple(found.encode()))
            ends = np.cumsum([len(vocabulary.pieces[token]) for token in ids])
            parted.append(int(np.searchsorted(ends, same, side="right")))
    facts = {"num_different": float(len(parted))}
    return {**facts, "first_difference": float(min(parted))} if parted else facts


def _num_equal(ours: Ids, theirs: Ids) -> int:
    """Return the number of ids that agree before the first difference."""
    pairs = zip(ours, theirs, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))


def _kl(reference: Answers, other: Answers) -> npt.NDArray[np.float64]:
    """Return the KL of each position, shape (positions,)."""
    num = len(reference.top_ids)
    keys, logprobs = _flat(reference)
    other_keys, other_logprobs = _flat(other)
    _both, ours, theirs = np.intersect1d(keys, other_keys, assume_unique=True, return_indices=True)
    rows = keys[ours] // reference.num_vocab
    log_p, log_q = logprobs[ours], other_logprobs[theirs]
    p, q = np.exp(log_p), np.exp(log_q)
    named = np.bincount(rows, p * (log_p - log_q), num)
    rest_p = np.maximum(1 - np.bincount(rows, p, num), _LEAST_MASS)
    rest_q = np.maximum(1 - np.bincount(rows, q, num), _LEAST_MASS)
    kl: npt.NDArray[np.float64] = np.maximum(named + rest_p * np.log(rest_p / rest_q), 0.0)
    return kl


def _flat(answers: Answers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return position × vocabulary + id of every candidate, and its log-probability, as flat arrays without gaps."""
    is_there = answers.top_ids >= 0
    positions = np.arange(len(answers.top_ids), dtype=np.int64)[:, np.newaxis] * answers.num_vocab
    return (positions + answers.top_ids)[is_there], answers.top_logprobs[is_there].astype(np.float64)
