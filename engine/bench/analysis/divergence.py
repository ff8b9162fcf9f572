"""Divergence of two configurations: their distributions on the same tokens, and their greedy answers."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.bench.measurement.clients import Deadline
from engine.errors import ConfigError
from engine.pool.job import Job
from engine.pool.pool import Pool
from engine.results import INSPECTED, Completion, Floats, Ints
from engine.specs import Sampling
from engine.units import counted, significant

NUM_CANDIDATES = 256
"""Number of candidates recorded of each distribution; the remaining mass counts as one more."""

_LEAST_MASS = 1e-9
"""Remaining mass below this is rounding error of the 32-bit log-probabilities."""

Ids = tuple[int, ...]


class Answers(NamedTuple):
    """Answers of one configuration to a fixed set of prompts, as plain values.

    greedy: ids of the greedy answer to each prompt; forced: ids evaluated by teacher forcing, each a prompt followed by
    its reference answer; top_ids, top_logprobs: the most probable candidates for each forced id except the first of a
    prompt, all prompts concatenated, shape (positions, candidates), id -1 where there is none; num_vocab: vocabulary
    size.
    """

    prompts: tuple[Ids, ...]
    greedy: tuple[Ids, ...]
    forced: tuple[Ids, ...]
    top_ids: Ints
    top_logprobs: Floats
    num_vocab: int


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
    def same_answers(self) -> bool:
        """True where every greedy answer is the same."""
        return self.num_different == 0

    @property
    def facts(self) -> dict[str, float]:
        """The figures by name, as CellRecord.facts stores them; first_difference only where there is one."""
        found = {"kl_mean": self.kl_mean, "kl_max": self.kl_max, "num_different": float(self.num_different)}
        return found if self.first_difference is None else {**found, "first_difference": float(self.first_difference)}

    @property
    def sentence(self) -> str:
        """The figures as a sentence."""
        kl = (
            f"KL {significant(self.kl_mean)} nats a token, {significant(self.kl_max)} at most, "
            f"over {counted(self.num_tokens, 'token')}"
        )
        if self.first_difference is None:
            return f"Answers as the reference does: all {self.num_answers:,} greedy answers are the same ({kl})."
        return (
            f"Answers differently: {self.num_different:,} of {self.num_answers:,} greedy answers differ, "
            f"the first at token {self.first_difference + 1:,} ({kl})."
        )


def answers(pool: Pool, asked: Sequence[str] | Answers, *, num_tokens: int = 32, timeout_s: float = 600.0) -> Answers:
    """Run a set of prompts on `pool`, or those of a reference, whose answers are then teacher-forced.

    Requests run one at a time and without prefix reuse, so that neighbouring sequences do not change the logits and the
    same configuration gives the same figures. Raises ConfigError where the reference has another vocabulary or there
    are no prompts, PromptTooLong where prompt and answer do not fit a sequence, JobTimeout, WorkerDied.
    """
    if not isinstance(asked, Answers):
        if not asked:
            raise ConfigError("no prompts to compare answers by: give at least one")
        prompts = tuple(tuple(pool.tokenize(prompt)) for prompt in asked)
    elif asked.num_vocab == len(pool.vocabulary):
        prompts = asked.prompts
    else:
        raise ConfigError(
            f"the reference has a vocabulary of {asked.num_vocab:,} tokens and this model one of "
            f"{len(pool.vocabulary):,}: only models with the same vocabulary can be compared"
        )
    deadline, most_probable = Deadline(timeout_s), Sampling(temperature=0)
    greedy = tuple(
        tuple(_done(pool.submit(ids, most_probable, max_tokens=num_tokens, reuse_prefix=False), deadline).ids)
        for ids in prompts
    )
    own = tuple(prompt + answer for prompt, answer in zip(prompts, greedy, strict=True))
    forced = asked.forced if isinstance(asked, Answers) else own
    tables = []
    for ids in forced:
        job = pool.submit(ids, most_probable, max_tokens=0, top_k=NUM_CANDIDATES, prompt_logprobs=True)
        tables.append(_done(job, deadline).prompt_steps)
    kept = [(table.records["flags"] & INSPECTED) > 0 for table in tables]
    return Answers(
        prompts,
        greedy,
        forced,
        np.concatenate([table.top_ids[rows] for table, rows in zip(tables, kept, strict=True)]),
        np.concatenate([table.top_logprobs[rows] for table, rows in zip(tables, kept, strict=True)]),
        len(pool.vocabulary),
    )


def divergence(reference: Answers, other: Answers) -> Divergence:
    """Return the divergence of `other` from `reference`; raises ConfigError unless both have the same forced ids.

    KL(reference || other) for each token, over the candidates that both recorded and the remaining mass as one more:
    never more than the KL over the whole vocabulary, and equal to it where all of it was recorded.
    """
    if reference.forced != other.forced:
        raise ConfigError(
            "these answers are to other tokens: ask the second configuration with answers(pool, reference)"
        )
    kl = _kl(reference, other)
    parted = [
        _num_equal(ours, theirs) for ours, theirs in zip(reference.greedy, other.greedy, strict=True) if ours != theirs
    ]
    return Divergence(
        float(kl.mean()), float(kl.max()), min(parted, default=None), len(kl), len(parted), len(reference.greedy)
    )


def _done(job: Job, deadline: Deadline) -> Completion:
    try:
        return job.result(deadline.left_s)
    finally:
        job.cancel()


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
