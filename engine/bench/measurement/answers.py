"""Answers of a configuration to a fixed set of prompts: greedy ones, and distributions under teacher forcing."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from engine.bench.measurement.clients import Deadline
from engine.errors import ConfigError
from engine.jobs import Job
from engine.protocol import Engine
from engine.results import Completion
from engine.specs import RequestOptions, Sampling
from engine.step_parts import INSPECTED, Floats, Ints

NUM_CANDIDATES = 256
"""Number of candidates recorded of each distribution; the remaining mass counts as one more."""

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


def answers(
    engine: Engine, asked: Sequence[str] | Answers, *, num_tokens: int = 32, timeout_s: float = 600.0
) -> Answers:
    """Run a set of prompts on `engine`, or those of a reference, whose answers are then teacher-forced.

    Requests run one at a time and without prefix reuse, so that neighbouring sequences do not change the logits and the
    same configuration gives the same figures. Raises ConfigError where the reference has another vocabulary or there
    are no prompts, PromptTooLong where prompt and answer do not fit a sequence, JobTimeout, WorkerDied.
    """
    if not isinstance(asked, Answers):
        if not asked:
            raise ConfigError("no prompts to compare answers on: give at least one")
        prompts = tuple(tuple(engine.tokenize(prompt)) for prompt in asked)
    elif asked.num_vocab == len(engine.vocabulary):
        prompts = asked.prompts
    else:
        raise ConfigError(
            f"the reference has a vocabulary of {asked.num_vocab:,} tokens and this model "
            f"{len(engine.vocabulary):,}: only models with the same vocabulary can be compared"
        )
    deadline, most_probable = Deadline(timeout_s), Sampling(temperature=0)
    greedy = tuple(
        tuple(_done(engine.submit(ids, most_probable, max_tokens=num_tokens, reuse_prefix=False), deadline).ids)
        for ids in prompts
    )
    own = tuple(prompt + answer for prompt, answer in zip(prompts, greedy, strict=True))
    forced = asked.forced if isinstance(asked, Answers) else own
    tables = []
    for ids in forced:
        options = RequestOptions(max_tokens=0, top_k=NUM_CANDIDATES, prompt_logprobs=True, reuse_prefix=False)
        job = engine.submit(ids, most_probable, **options)
        tables.append(_done(job, deadline).prompt_steps)
    kept = [(table.records["flags"] & INSPECTED) > 0 for table in tables]
    return Answers(
        prompts,
        greedy,
        forced,
        np.concatenate([table.top_ids[rows] for table, rows in zip(tables, kept, strict=True)]),
        np.concatenate([table.top_logprobs[rows] for table, rows in zip(tables, kept, strict=True)]),
        len(engine.vocabulary),
    )


def greedy_completions(
    submit: Callable[..., Job],
    prompts: Sequence[str] | Sequence[Ids],
    *,
    top_k: int = 0,
    num_tokens: int = 32,
    timeout_s: float = 600.0,
) -> tuple[Completion, ...]:
    """Return the greedy answer of a server to each prompt, one request at a time, with `top_k` candidates.

    `submit` is that of its engine. Raises JobTimeout, ServerFailed.
    """
    deadline, most_probable = Deadline(timeout_s), Sampling(temperature=0)
    options = RequestOptions(max_tokens=num_tokens, top_k=top_k, reuse_prefix=False)
    return tuple(_done(submit(prompt, most_probable, **options), deadline) for prompt in prompts)


def until_they_part(reference: Answers, done: Sequence[Completion]) -> tuple[Answers, Answers]:
    """Return a reference and greedy answers of the same model, with their distributions of the tokens before which both
    have the same text: up to the first token that differs, or that has no candidates.
    """
    rows, top_ids, top_logprobs, start = list[int](), list[Ints](), list[Floats](), 0
    for prompt, greedy, forced, one in zip(reference.prompts, reference.greedy, reference.forced, done, strict=True):
        parted = [place for place, (ours, theirs) in enumerate(zip(greedy, one.ids, strict=False)) if ours != theirs]
        bare = np.flatnonzero((one.steps.records["flags"] & INSPECTED) == 0).tolist()
        num = min(len(greedy), len(one.ids), *(place + 1 for place in parted[:1]), *bare[:1])
        first = start + len(prompt) - 1
        rows += range(first, first + num)
        top_ids.append(one.steps.top_ids[:num])
        top_logprobs.append(one.steps.top_logprobs[:num])
        start += len(forced) - 1
    ours = reference._replace(top_ids=reference.top_ids[rows], top_logprobs=reference.top_logprobs[rows])
    return ours, ours._replace(
        greedy=tuple(tuple(one.ids) for one in done),
        top_ids=np.concatenate(top_ids),
        top_logprobs=np.concatenate(top_logprobs),
    )


def _done(job: Job, deadline: Deadline) -> Completion:
    try:
        return job.result(deadline.left_s)
    finally:
        job.cancel()
