"""Watched words: probability and rank of sets of tokens at every step, against float64 arithmetic on all logits."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import log_softmax, logsumexp

from engine.errors import ConfigError
from engine.llama.context import Context
from engine.llama.distribution import Distribution, Drawn, Logits, Watched, row_of
from engine.pool.pool import Pool
from engine.specs import MAX_WATCHED, MAX_WATCHED_IDS, Request, Sampling, TokenSets
from engine.step_parts import step_dtype
from engine.steps import StepTable
from tests.engine.llama.test_distribution import SIZES, rows
from tests.engine.llama.test_truth import raw_logits

PROMPT = "Once upon a time there lived a king who had three daughters, and the youngest"
WORDS: TokenSets = ((17,), (300, 301, 4, 299), tuple(range(100, 100 + MAX_WATCHED_IDS)), (0,))


def recorded(logits: Logits, words: TokenSets, k: int) -> np.void:
    """Return the step that took token 0 of a row."""
    seen, row = Distribution(len(logits)), row_of(logits)
    seen.look(row, k, is_measured=True)
    written = seen.record(row, Drawn(0, 0.5, 0), 0.1, k, watched=Watched(words))
    step: np.void
    (step,) = np.frombuffer(written, step_dtype(k, num_watched=len(words)))
    return step


def expected(logits: npt.NDArray[np.floating], words: TokenSets) -> tuple[list[float], list[int]]:
    exact = log_softmax(logits.astype(np.float64))
    best = [max(logits[list(word)]) for word in words]
    return [float(logsumexp(exact[list(word)])) for word in words], [1 + int((logits > one).sum()) for one in best]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [0, 1, 13])
def test_each_word_has_the_summed_probability_and_the_rank_of_its_best_token(size: int, k: int) -> None:
    draw = random.Random(size)
    for name, logits in rows(size).items():
        words = tuple(
            tuple(draw.sample(range(size), draw.randint(1, min(size, MAX_WATCHED_IDS))))
            for _ in range(draw.randint(1, MAX_WATCHED))
        )
        step = recorded(logits, words, k)
        logprobs, ranks = expected(logits, words)
        assert step["watched_rank"].tolist() == ranks, name
        np.testing.assert_allclose(step["watched_logprob"], logprobs, atol=2e-6, err_msg=name)


def test_ties_share_the_better_rank_and_the_impossible_has_the_probability_zero() -> None:
    logits = np.array([1, 3, 3, 2, -np.inf], np.float32)
    for k in (1, 5):
        step = recorded(logits, ((0,), (2,), (3, 0), (4,), (4, 1)), k)
        assert step["watched_rank"].tolist() == [4, 1, 3, 5, 1]
        assert step["watched_logprob"][3] == -np.inf
        assert np.isfinite(step["watched_logprob"][[0, 1, 2, 4]]).all()


def test_a_step_does_not_depend_on_those_recorded_before_it() -> None:
    """The memory in which a step is written still has the bytes of one with more candidates."""
    logits, words = rows(300)["normal"], ((3,), (4, 5))
    seen, row = Distribution(300), row_of(logits)
    seen.look(row, 300, is_measured=True)
    seen.record(row, Drawn(1, 0.5, 0), 0.1, 300, watched=Watched(tuple((token,) for token in range(MAX_WATCHED))))
    seen.look(row, 7, is_measured=True)
    again = seen.record(row, Drawn(0, 0.5, 0), 0.1, 7, watched=Watched(words))
    assert again == recorded(logits, words, 7).tobytes()


def scored(pool: Pool, prompt: str | Sequence[int], words: TokenSets, **options: object) -> StepTable:
    given = Request.from_dict({"max_tokens": 0, "prompt_logprobs": True, "watched": words, **options})
    return pool.submit(prompt, **given.to_dict()).result(60).prompt_steps


def test_every_token_of_a_scored_prompt_equals_llama_cpp(pool: Pool, context: Context) -> None:
    steps = scored(pool, PROMPT * 3, WORDS)
    logits = raw_logits(context, steps.ids)
    assert steps[0].watched == []
    for index, step in enumerate(steps[1:]):
        logprobs, ranks = expected(logits[index], WORDS)
        assert [word.ids for word in step.watched] == list(WORDS)
        assert [word.logprob for word in step.watched] == pytest.approx(logprobs, abs=1e-5)
        assert [word.rank for word in step.watched] == ranks


@pytest.mark.parametrize("reuse_prefix", [True, False])
@pytest.mark.parametrize("top_k", [0, 20])
def test_generated_tokens_agree_with_their_own_candidates(pool: Pool, *, top_k: int, reuse_prefix: bool) -> None:
    sampling = Sampling(seed=4, logit_bias=((17, -np.inf), (300, 3.0)))
    options = Request.from_dict({"max_tokens": 24, "reuse_prefix": reuse_prefix})
    looked_at = pool.submit(PROMPT, sampling, **replace(options, top_k=20).to_dict()).result(60)
    likely = [candidate.id for candidate in looked_at.steps[0].top]
    words = *((token,) for token in likely[:10]), (likely[3], likely[1]), (17,)
    watching = replace(options, top_k=top_k, stages=top_k > 0, watched=words)
    done = pool.submit(PROMPT, sampling, **watching.to_dict()).result(60)
    assert done.ids == looked_at.ids and not any(step.watched for step in done.prompt_steps)
    num_compared = 0
    for step, other in zip(done.steps, looked_at.steps, strict=True):
        assert len(step.watched) == len(words) and len(step.top) == top_k and bool(step.stages) == bool(top_k)
        logprobs = {candidate.id: candidate.logprob for candidate in other.top}
        for word in step.watched:
            found = [logprobs[token] for token in word.ids if token in logprobs]
            if found and len(found) == len(word.ids):
                assert word.logprob == pytest.approx(float(logsumexp(found)), abs=1e-5)
            if found:
                assert word.rank == 1 + sum(each > max(found) for each in logprobs.values())
            num_compared += bool(found)
    assert num_compared > 24


def test_the_records_of_one_word_are_not_taken_for_those_of_another(pool: Pool) -> None:
    """A second word on the same prompt is computed; the first again comes from its records."""
    first, second = (scored(pool, PROMPT, ((token,),), top_k=3) for token in (40, 41))
    again = scored(pool, PROMPT, ((40,),), top_k=3)
    assert [step.watched for step in first] == [step.watched for step in again]
    longer = scored(pool, [*first.ids, 7, 8], ((41,),), top_k=3)
    np.testing.assert_allclose(
        [step.watched[0].logprob for step in longer[1 : len(second)]],
        [step.watched[0].logprob for step in second[1:]],
        atol=1e-2,
    )
    assert {word.ids for step in longer for word in step.watched} == {(41,)}


def test_a_copy_and_a_dict_have_the_watched_words(pool: Pool) -> None:
    done = pool.submit(PROMPT, Sampling(seed=1), max_tokens=3, watched=WORDS).result(60)
    value = done.to_dict()["steps"][0]["watched"]
    assert [one["ids"] for one in value] == [list(word) for word in WORDS]
    assert [(one["logprob"], one["rank"]) for one in value] == [
        (word.logprob, word.rank) for word in done.steps[0].watched
    ]
    assert "watched" not in pool.submit(PROMPT, max_tokens=1).result(60).to_dict()["steps"][0]


@pytest.mark.parametrize(
    ("watched", "message"),
    [
        ("Yes", "must be a list of words"),
        (5, "must be a list of words"),
        (["Yes"], "must be a list of token ids"),
        ([[]], "a word without token ids"),
        ([[-1]], "-1 is not a token id"),
        ([[True]], "True is not a token id"),
        ([[1 << 31]], "is not a token id"),
        ([[5, 6, 5]], "names token 5 twice"),
        ([[1]] * (MAX_WATCHED + 1), f"{MAX_WATCHED + 1} words; at most {MAX_WATCHED} are allowed"),
        ([range(MAX_WATCHED_IDS + 1)], f"at most {MAX_WATCHED_IDS} are allowed"),
    ],
)
def test_what_is_no_word_is_refused(watched: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Request.from_dict({"watched": watched})


def test_ids_beyond_the_vocabulary_are_refused_and_their_neighbours_go_on(pool: Pool) -> None:
    beside = pool.submit(PROMPT, Sampling(seed=1), max_tokens=16)
    for max_tokens in (4, 0):
        job = pool.submit(PROMPT, watched=((len(pool.vocabulary),),), max_tokens=max_tokens, prompt_logprobs=True)
        with pytest.raises(ConfigError, match=f"a watched word must be from 0 to {len(pool.vocabulary) - 1:,}"):
            job.result(60)
    assert len(beside.result(60).steps) > 0
