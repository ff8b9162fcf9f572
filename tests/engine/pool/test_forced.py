"""Forced tokens: steps that the caller chose are recorded like drawn ones, and the draws after them stay the same."""

import math

import pytest

from engine import ConfigError, Pool, Sampling
from engine.results import Completion
from tests.engine.pool.test_continue import PROMPT, STATEFUL

NUM, AT = 24, 7


def whole(pool: Pool, sampling: Sampling) -> Completion:
    return pool.submit(PROMPT, sampling, max_tokens=NUM, top_k=8, reuse_prefix=False).result(60)


def forced(pool: Pool, run: Completion, ids: list[int], sampling: Sampling, *, max_tokens: int) -> Completion:
    given = [*run.prompt_ids, *run.ids[:AT], *ids]
    job = pool.submit(given, sampling, max_tokens=max_tokens, top_k=8, generated=AT, forced=len(ids))
    return job.result(60)


@pytest.mark.parametrize("kind", STATEFUL)
def test_forcing_what_was_drawn_changes_nothing(pool: Pool, kind: str) -> None:
    run = whole(pool, STATEFUL[kind])
    again = forced(pool, run, list(run.ids[AT : AT + 3]), STATEFUL[kind], max_tokens=NUM - AT)
    assert list(again.ids) == list(run.ids[AT:])
    assert [step.is_forced for step in again.steps] == [True] * 3 + [False] * (NUM - AT - 3)
    assert all(math.isnan(draw) for draw in again.steps.records["draw"][:3])
    for one, other in zip(again.steps, run.steps[AT:], strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
    assert [step.draw for step in again.steps[3:]] == pytest.approx(
        [step.draw for step in run.steps[AT + 3 :]], nan_ok=True
    )


def test_another_candidate_has_its_own_figures_and_the_text_goes_on_from_it(pool: Pool) -> None:
    sampling = Sampling(seed=8)
    run = whole(pool, sampling)
    candidate = next(one for one in run.steps[AT].top if one.id != run.ids[AT])
    branch = forced(pool, run, [candidate.id], sampling, max_tokens=6)
    first = branch.steps[0]
    assert first.id == candidate.id and first.is_forced
    assert first.logprob == pytest.approx(candidate.logprob, abs=1e-3)
    assert first.rank == 1 + sum(one.logprob > candidate.logprob for one in run.steps[AT].top)
    assert first.p_final == pytest.approx(candidate.p_final, abs=1e-3)
    ids = [*run.prompt_ids, *run.ids[:AT], candidate.id]
    assert list(branch.ids[1:]) == list(pool.submit(ids, sampling, max_tokens=5, generated=AT + 1).result(60).ids)
    assert list(branch.prompt_ids) == ids[:-1]


def test_only_forced_tokens(pool: Pool) -> None:
    run = whole(pool, Sampling(seed=8))
    only = forced(pool, run, [5, 6], Sampling(seed=8), max_tokens=2)
    assert list(only.ids) == [5, 6] and only.finish_reason == "length"


def test_a_forced_end_token_ends_the_text(pool: Pool) -> None:
    run = whole(pool, Sampling(seed=8))
    end = next(id for id in range(len(pool.vocabulary)) if pool.vocabulary.is_end(id))
    ended = forced(pool, run, [end], Sampling(seed=8), max_tokens=9)
    assert list(ended.ids) == [end] and ended.finish_reason == "stop"


def test_a_forced_token_that_the_grammar_forbids_fails_its_job_alone(pool: Pool) -> None:
    sampling = Sampling(seed=1, grammar='root ::= "yes" | "no"')
    ids = pool.tokenize(PROMPT)
    wrong = pool.tokenize(" zebra")
    beside = pool.submit(PROMPT, Sampling(seed=2), max_tokens=40)
    with pytest.raises(ConfigError, match="grammar does not allow"):
        pool.submit([*ids, *wrong], sampling, max_tokens=8, forced=len(wrong)).result(60)
    assert len(beside.result(60).ids) > 0


@pytest.mark.parametrize(
    ("forced", "max_tokens", "why"),
    [(3, 2, "max_tokens = 2"), (400, 400, "at least the first"), (-1, 8, "forced = -1")],
)
def test_a_number_of_forced_tokens_that_cannot_be(pool: Pool, forced: int, max_tokens: int, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        pool.submit(PROMPT, max_tokens=max_tokens, forced=forced).result(60)


def test_forced_tokens_after_a_scored_prompt(pool: Pool) -> None:
    ids = pool.tokenize(PROMPT)
    scored = pool.submit([*ids, 5], max_tokens=3, top_k=4, prompt_logprobs=True, forced=1).result(60)
    assert len(scored.prompt_steps) == len(ids) and scored.ids[0] == 5
