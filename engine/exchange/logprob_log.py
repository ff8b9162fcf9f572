"""Candidate logs as trials: the sampled tokens and their candidates, inspected like any other trial."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from engine.errors import ConfigError
from engine.exchange.logs import LoggedStep
from engine.history import ModelIdentity, TrialLabel, TrialRecord
from engine.results import Completion, Timings
from engine.specs import MAX_RECORDED, PoolSpec, Request, Sampling
from engine.step_parts import INSPECTED, RECORD
from engine.steps import StepTable
from engine.vocabulary import Vocabulary

MOST_TOKENS = 1_000_000


def trial_of_log(steps: Sequence[LoggedStep], id: str, name: str) -> TrialRecord:
    """Return the trial recorded in a log; steps without a sampled token are left out.

    A probability is used both as the model's and as the final one before the draw, as the log does not distinguish
    them. Entropy, seed and sampling are unknown; times have the log's resolution of whole seconds. The vocabulary
    contains only the tokens of the log. Raises ConfigError where no step has a sampled token, and for values beyond the
    limits of a trial.
    """
    sampled = [step for step in steps if step.sampled is not None]
    if not sampled:
        raise ConfigError("the log has candidates but no sampled token, so there is nothing to import")
    table = _table(sampled, _vocabulary(sampled))
    completion = Completion(
        text=table.text,
        steps=table,
        prompt_steps=StepTable(table.vocabulary, 0, is_prompt=True),
        prompt_ids=(),
        finish_reason="length",
        timings=Timings(0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, len(table)),
        seed=0,
        id=id,
    )
    return TrialRecord(
        id=id,
        created_at=_moment(sampled[0].at),
        prompt=name,
        messages=(),
        sampling=Sampling(),
        request=Request(max_tokens=len(table), top_k=table.k),
        pool=PoolSpec(),
        model=ModelIdentity(name, name, "", "", 0),
        versions={},
        completion=completion,
        label=TrialLabel.LOG,
    )


def _vocabulary(steps: Sequence[LoggedStep]) -> Vocabulary:
    seen = [one for step in steps for one in (*step.candidates, step.sampled) if one is not None]
    size = 1 + max(one.id for one in seen)
    if size > MOST_TOKENS:
        raise ConfigError(f"token {size - 1:,}: no vocabulary has more than {MOST_TOKENS:,} tokens")
    pieces = [b""] * size
    for one in seen:
        pieces[one.id] = one.text.encode()
    return Vocabulary(tuple(pieces), bytes(size), {}, None, add_bos=False, add_space_prefix=False)


def _table(steps: Sequence[LoggedStep], vocabulary: Vocabulary) -> StepTable:
    k = max(len(step.candidates) for step in steps)
    if k > MAX_RECORDED:
        raise ConfigError(f"a step has {k:,} candidates; at most {MAX_RECORDED:,} are allowed")
    records = np.zeros(len(steps), RECORD)
    for name in ("logprob", "entropy", "normaliser", "p_final", "draw"):
        records[name] = np.nan
    ids = np.full((len(steps), k), -1, np.int32)
    p = np.zeros((len(steps), k), np.float32)
    for number, step in enumerate(steps):
        ids[number, : len(step.candidates)] = [one.id for one in step.candidates]
        p[number, : len(step.candidates)] = [one.p for one in step.candidates]
        taken = step.sampled
        if taken is None:
            continue
        records[number]["id"] = taken.id
        if taken.p > 0:
            records[number]["rank"] = 1 + sum(one.p > taken.p for one in step.candidates)
            records[number]["logprob"], records[number]["p_final"] = math.log(taken.p), taken.p
            records[number]["flags"] = INSPECTED
    records["elapsed_s"] = np.diff([step.at for step in steps], prepend=steps[0].at).clip(min=0)
    with np.errstate(divide="ignore"):
        logprobs = np.log(p)
    return StepTable.of(vocabulary, records, ids, logprobs, p, is_prompt=False)


def _moment(at: int) -> datetime:
    try:
        return datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        raise ConfigError(f"[{at}]: not a valid time in seconds since 1970") from None
