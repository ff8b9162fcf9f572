"""Many prompts that share their beginning: computed once, copied by the others, and as accurate as alone."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.pool.pool import Pool
from engine.results import Completion
from engine.specs import Sampling

SHARED, OWN, NUM = 256, 16, 8
FIRST_WORD = 300
NEAR = 0.05
"""Nats by which a log-probability of the shipped model changes when its tokens are computed in other batches."""


@pytest.fixture(scope="module")
def crowded(story_model: Path) -> Iterator[Pool]:
    with Pool(story_model, parallel=NUM, n_ctx=512) as opened:
        yield opened


def words(pool: Pool, seed: int, num: int) -> list[int]:
    return random.Random(seed).choices(range(FIRST_WORD, len(pool.vocabulary)), k=num)


def num_computed(pool: Pool) -> float:
    return sum(worker["num_tokens"] for worker in pool.measure())


def together(pool: Pool, prompts: list[list[int]], **options: Any) -> list[Completion]:
    with pool.held():
        jobs = [pool.submit(prompt, Sampling(temperature=0), **{"top_k": 1, **options}) for prompt in prompts]
    return [job.result() for job in jobs]


def test_a_shared_beginning_is_computed_once_and_every_figure_is_that_of_the_prompt_alone(crowded: Pool) -> None:
    beginning = words(crowded, 1, SHARED)
    prompts = [[*beginning, *words(crowded, 2 + number, OWN)] for number in range(NUM)]
    before = num_computed(crowded)
    done = together(crowded, prompts, max_tokens=4)
    assert num_computed(crowded) - before <= SHARED + NUM * (OWN + 4)
    assert sorted(one.timings.num_cached for one in done) == [0, *[SHARED] * (NUM - 1)]
    for prompt, one in zip(prompts, done, strict=True):
        alone = crowded.submit(prompt, Sampling(temperature=0), top_k=1, max_tokens=4, reuse_prefix=False).result()
        same = next((n for n, pair in enumerate(zip(one.ids, alone.ids, strict=True)) if len({*pair}) > 1), 4)
        ours, theirs = (each.steps.records["logprob"][:same] for each in (one, alone))
        assert same >= 1
        assert np.abs(ours - theirs).max() < NEAR
    assert np.ptp([one.steps.records["logprob"][0] for one in done]) > 10 * NEAR, "the prompts differ in their ends"


def test_equal_prompts_are_computed_once(crowded: Pool) -> None:
    prompt = words(crowded, 20, SHARED)
    before = num_computed(crowded)
    done = together(crowded, [prompt] * NUM, max_tokens=3)
    assert len({tuple(one.ids) for one in done}) == 1
    assert num_computed(crowded) - before <= SHARED + NUM * 3


@pytest.mark.parametrize("is_begun", [False, True])
def test_where_the_one_that_computes_it_is_cancelled_the_next_one_does(crowded: Pool, is_begun: bool) -> None:
    beginning = words(crowded, 30 + is_begun, 480)
    prompts = [[*beginning, number + FIRST_WORD] for number in range(3)]
    with crowded.held():
        first, *others = [crowded.submit(prompt, Sampling(temperature=0), max_tokens=2) for prompt in prompts]
        if not is_begun:
            first.cancel()
    first.cancel()
    assert [len(other.result().ids) for other in others] == [2, 2]


def test_what_waits_for_a_beginning_can_be_cancelled(crowded: Pool) -> None:
    beginning = words(crowded, 40, 480)
    with crowded.held():
        jobs = [crowded.submit([*beginning, number + FIRST_WORD], Sampling(), max_tokens=2) for number in range(4)]
    jobs[1].cancel()
    reasons = [job.result().finish_reason for job in jobs]
    assert reasons[1] in ("cancelled", "length", "stop")
    assert all(reason != "cancelled" for reason in (reasons[0], *reasons[2:]))


def test_jobs_that_want_everything_computed_wait_for_nobody(crowded: Pool) -> None:
    prompt = words(crowded, 50, SHARED)
    before = num_computed(crowded)
    done = together(crowded, [prompt] * 3, max_tokens=1, reuse_prefix=False)
    assert [one.timings.num_cached for one in done] == [0, 0, 0]
    assert num_computed(crowded) - before >= 3 * SHARED
    scored = together(crowded, [prompt] * 2, max_tokens=0, prompt_logprobs=True)
    logprobs = [one.prompt_steps.records["logprob"][1:] for one in scored]
    assert np.abs(logprobs[0] - logprobs[1]).max() < NEAR


def score(pool: Pool, prompts: list[list[int]], **options: Any) -> list[Completion]:
    return together(pool, prompts, **{"max_tokens": 0, "prompt_logprobs": True, **options})


@pytest.mark.parametrize("is_at_once", [False, True])
def test_answers_scored_over_one_context_compute_it_once(crowded: Pool, is_at_once: bool) -> None:
    context = words(crowded, 60 + is_at_once, SHARED)
    prompts = [[*context, *words(crowded, 62 + number, 4)] for number in range(4)]
    groups = [prompts] if is_at_once else [[prompt] for prompt in prompts]
    before = num_computed(crowded)
    done = [one for group in groups for one in score(crowded, group)]
    assert num_computed(crowded) - before <= SHARED + 4 * (4 + 1)
    assert sorted(one.timings.num_cached for one in done) == [0, *[SHARED - 1] * 3]
    for prompt, one in zip(prompts, done, strict=True):
        (alone,) = score(crowded, [prompt], reuse_prefix=False)
        ours, theirs = (each.prompt_steps.records for each in (one, alone))
        assert len(ours) == len(theirs) == len(prompt)
        assert ours["id"].tolist() == theirs["id"].tolist() == prompt
        assert np.abs(ours["logprob"][1:] - theirs["logprob"][1:]).max() < NEAR
        assert ours["elapsed_s"][1:].min() >= 0


def test_equal_prompts_get_the_very_records_of_the_first(crowded: Pool) -> None:
    prompt = words(crowded, 70, SHARED)
    first, second = (score(crowded, [prompt], top_k=5)[0] for _ in range(2))
    assert second.timings.num_cached == SHARED - 1
    for name in {*(first.prompt_steps.records.dtype.names or ())} - {"elapsed_s"}:
        assert np.array_equal(first.prompt_steps.records[name], second.prompt_steps.records[name], equal_nan=True), name
    assert np.array_equal(first.prompt_steps.top_ids, second.prompt_steps.top_ids)


def test_a_scored_prompt_reuses_only_what_was_scored_with_as_many_candidates(crowded: Pool) -> None:
    prompt = words(crowded, 71, SHARED)
    together(crowded, [prompt], max_tokens=1)
    found = [score(crowded, [prompt], top_k=top_k)[0] for top_k in (3, 4, 3)]
    assert [one.timings.num_cached for one in found] == [0, 0, SHARED - 1]
    assert {one.prompt_steps.top_ids.shape for one in found} == {(SHARED, 3), (SHARED, 4)}


def test_a_context_whose_scoring_was_stopped_is_scored_as_far_as_it_lacks(crowded: Pool) -> None:
    context = words(crowded, 72, 480)
    with crowded.held():
        jobs = [
            crowded.submit([*context, FIRST_WORD + number], Sampling(), max_tokens=0, top_k=1, prompt_logprobs=True)
            for number in range(3)
        ]
    jobs[0].cancel()
    for job in jobs[1:]:
        assert np.isfinite(job.result().prompt_steps.records["logprob"][1:]).all()
        assert len(job.result().prompt_steps) == 481


def test_a_text_generated_after_a_scored_prompt_is_the_one_without_reuse(crowded: Pool) -> None:
    prompt = words(crowded, 73, SHARED)
    score(crowded, [prompt])
    again, alone = (
        score(crowded, [prompt], max_tokens=6, reuse_prefix=reuse_prefix)[0] for reuse_prefix in (True, False)
    )
    assert again.timings.num_cached == SHARED - 1
    assert np.abs(again.steps.records["logprob"][0] - alone.steps.records["logprob"][0]) < NEAR
