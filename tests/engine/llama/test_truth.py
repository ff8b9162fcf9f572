"""The engine's numbers against raw logits, the high-level class, and themselves in other batches."""

import itertools
from pathlib import Path

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import log_softmax

from engine.errors import ConfigError
from engine.llama.context import Chunk, Context
from engine.llama.model import Model
from engine.pool.pool import Pool
from engine.specs import Sampling
from tests.engine.llama.conftest import SPEC

PROMPT = "Once upon a time there lived a king who had three daughters, and the youngest"
GREEDY = Sampling(temperature=0)


def raw_logits(context: Context, ids: list[int]) -> npt.NDArray[np.float32]:
    """Return the logits after each of `ids`, computed as for scoring."""
    rows, most = [], SPEC.scored_rows(context.model.num_vocab)
    for start in range(0, len(ids), most):
        chunk = ids[start : start + most]
        num_rows = context.fill([Chunk(0, chunk, start, len(chunk))])
        assert context.decode() == 0
        rows.append(np.array([row.logits for row in context.logits(num_rows)]))
    return np.concatenate(rows)


def test_prompt_logprobs_equal_a_float64_log_softmax(pool: Pool, model: Model, context: Context) -> None:
    done = pool.submit(PROMPT * 3, max_tokens=0, top_k=20, prompt_logprobs=True).result(60)
    ids = list(done.prompt_ids)
    exact = log_softmax(raw_logits(context, ids).astype(np.float64), axis=1)
    assert done.prompt_steps[0].logprob is None
    for index, step in enumerate(done.prompt_steps[1:]):
        assert step.id == ids[index + 1]
        assert step.logprob == pytest.approx(exact[index, step.id], abs=1e-4)
        assert step.rank == 1 + int((exact[index] > exact[index, step.id]).sum())
        assert [candidate.logprob for candidate in step.top] == pytest.approx(-np.sort(-exact[index])[:20], abs=1e-4)
    assert done.timings.num_cached == 0


def test_generated_logprobs_equal_a_float64_log_softmax(pool: Pool, model: Model, context: Context) -> None:
    done = pool.submit(PROMPT, Sampling(seed=3), max_tokens=24, top_k=256, reuse_prefix=False).result(60)
    prompt = list(done.prompt_ids)
    num_rows = context.fill([Chunk(0, prompt, 0, 1)])
    for index, step in enumerate(done.steps):
        assert context.decode() == 0
        exact = log_softmax(context.logits(num_rows)[-1].logits.astype(np.float64))
        p = np.exp(exact)
        assert step.logprob == pytest.approx(exact[step.id], abs=1e-4)
        assert step.entropy == pytest.approx(-(p * exact).sum(), abs=1e-4)
        assert [c.id for c in step.top] == np.argsort(-exact, kind="stable")[:256].tolist()
        assert step.p_final == pytest.approx(next((c.p_final for c in step.top if c.id == step.id), 0), abs=1e-6)
        num_rows = context.fill([Chunk(0, (step.id,), len(prompt) + index, 1)])


def test_greedy_ids_equal_the_high_level_class(pool: Pool, story_model: Path) -> None:
    """Flash attention is on in both: the pool lets llama.cpp decide, and on a CPU it chooses flash attention."""
    llama = llama_cpp.Llama(str(story_model), n_ctx=512, n_threads=2, flash_attn=True, verbose=False)
    ours = pool.submit(PROMPT, GREEDY, max_tokens=48, reuse_prefix=False).result(60)
    theirs = itertools.islice(llama.generate(list(ours.prompt_ids), temp=0.0, repeat_penalty=1.0), 48)
    assert ours.ids == list(theirs)
    llama.close()


def test_twenty_repeats_are_identical(pool: Pool) -> None:
    def run() -> tuple[list[int], list[float | None]]:
        done = pool.submit(PROMPT, Sampling(seed=11), max_tokens=16, top_k=1, reuse_prefix=False).result(60)
        return done.ids, [step.logprob for step in done.steps]

    first = run()
    assert all(run() == first for _ in range(19))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(seed=5),
        Sampling(seed=5, mirostat=2),
        Sampling(seed=5, xtc_probability=0.5, xtc_threshold=0.05, repeat_penalty=1.1, dry_multiplier=0.5),
    ],
)
def test_sixty_four_and_continue_sixty_four_equal_one_hundred_and_twenty_eight(pool: Pool, sampling: Sampling) -> None:
    def run(prompt: str | list[int], max_tokens: int, generated: int = 0) -> list[int]:
        bans = Sampling.from_dict(sampling.to_dict() | {"logit_bias": {2: float("-inf")}})
        job = pool.submit(prompt, bans, max_tokens=max_tokens, reuse_prefix=False, generated=generated)
        done = job.result(60)
        return [*done.prompt_ids, *done.ids]

    half = run(PROMPT, 64)
    assert run(half, 64, generated=64) == run(PROMPT, 128)


def test_batch_against_single_teacher_forced(pool: Pool) -> None:
    """Neighbours change the logits a little; a greedy choice may differ only where the margin is smaller."""
    ids = list(pool.submit(PROMPT, Sampling(seed=2), max_tokens=120).result(60).ids)
    prompt = pool.tokenize(PROMPT)
    alone = pool.submit([*prompt, *ids], max_tokens=0, top_k=2, prompt_logprobs=True).result(60)
    jobs = [pool.submit([*prompt, *ids], max_tokens=0, top_k=2, prompt_logprobs=True) for _ in range(4)]
    for job in jobs:
        together = job.result(60)
        for one, other in zip(alone.prompt_steps[1:], together.prompt_steps[1:], strict=True):
            assert one.logprob is not None and other.logprob is not None
            change = abs(one.logprob - other.logprob)
            assert change < 0.25
            first, second = one.top
            if first.id != other.top[0].id:
                moved = max(abs(a.logprob - b.logprob) for a, b in zip(one.top, other.top, strict=True))
                assert first.logprob - second.logprob < 2 * max(change, moved)


def test_timings_add_up(pool: Pool) -> None:
    done = pool.submit(PROMPT, Sampling(seed=1), max_tokens=20, top_k=1).result(60)
    t = done.timings
    assert t.ttft_s == pytest.approx(t.queue_s + t.prefill_s)
    assert t.num_generated == len(done.steps)
    per_token = t.decode_s / (t.num_generated - 1)
    assert t.ttft_s + per_token * (t.num_generated - 1) == pytest.approx(t.ttft_s + t.decode_s)
    assert sum(step.elapsed_s for step in done.steps) == pytest.approx(t.ttft_s + t.decode_s, abs=2e-3)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(seed=5),
        Sampling(seed=5, logit_bias=((13, -np.inf), (20, 2.0), (400, 4.0))),
        Sampling(seed=5, repeat_penalty=1.3, xtc_probability=0.5, xtc_threshold=0.05),
        Sampling(seed=5, top_k=0, temperature=1.0),
        Sampling(seed=5, mirostat=2),
        Sampling(seed=5, grammar="root ::= [a-z ]+"),
    ],
    ids=["defaults", "bias", "penalties and xtc", "no top_k", "mirostat", "grammar"],
)
def test_without_inspection_the_same_tokens_are_drawn(pool: Pool, sampling: Sampling) -> None:
    looked_at, plain = (
        pool.submit(PROMPT, sampling, max_tokens=40, top_k=top_k, reuse_prefix=False).result(60) for top_k in (10, 0)
    )
    assert [step.id for step in plain.steps] == [step.id for step in looked_at.steps]
    assert all(step.logprob is None and step.rank is None and not step.top for step in plain.steps)
    draws = [step.draw for step in looked_at.steps]
    assert [step.draw for step in plain.steps] == draws


def test_a_bias_that_bans_everything_is_refused_without_inspection(pool: Pool) -> None:
    nothing = Sampling(logit_bias=tuple((token, -np.inf) for token in range(len(pool.vocabulary))))
    for top_k in (0, 10):
        with pytest.raises(ConfigError, match="leaves no token"):
            pool.submit(PROMPT, nothing, max_tokens=4, top_k=top_k).result(60)
