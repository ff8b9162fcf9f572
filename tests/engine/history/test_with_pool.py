"""Trials of the shipped model, through the real pool."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine import Completion, Pool, Sampling
from engine.history import History
from engine.step_parts import INSPECTED
from engine.steps import StepTable
from tests.engine.history.trial_maker import make_trial, uuid7

MODEL = Path(__file__).parents[3] / "data" / "demo" / "story.gguf"
PROMPT = "The king had three sons, and the youngest of them"
FIGURES = (
    "logprob",
    "rank",
    "entropy",
    "normaliser",
    "p_final",
    "draw",
    "elapsed_s",
    "num_kept",
    "top",
    "text",
    "bytes",
)


@pytest.fixture(scope="module")
def completions() -> Iterator[list[Completion]]:
    with Pool(MODEL, threads=1, parallel=4, n_ctx=512) as pool:
        endless = Sampling(logit_bias=((2, float("-inf")),), seed=7)
        jobs = [
            pool.submit(PROMPT, endless, max_tokens=200, top_k=256, prompt_logprobs=True),
            pool.submit(PROMPT, Sampling(temperature=0), max_tokens=12),
            pool.submit(PROMPT, max_tokens=0, top_k=5, prompt_logprobs=True),
        ]
        yield [job.result(120) for job in jobs]


def test_what_the_model_gave_comes_back(completions: list[Completion], history: History) -> None:
    for given in completions:
        id = uuid7()
        history.record(replace(make_trial(0, id=id), completion=given)).result(60)
        trial = history.trial(id)
        assert trial is not None
        kept = trial.completion
        assert (kept.text, kept.ids, kept.prompt_ids, kept.seed) == (
            given.text,
            given.ids,
            given.prompt_ids,
            given.seed,
        )
        assert (kept.finish_reason, kept.timings) == (given.finish_reason, given.timings)
        assert kept.steps.vocabulary.hash == given.steps.vocabulary.hash
        assert_reads_the_same(kept.steps, given.steps)
        assert_reads_the_same(kept.prompt_steps, given.prompt_steps)


def assert_reads_the_same(kept: StepTable, given: StepTable) -> None:
    """Assert that every figure that a reader of a step sees is the same."""
    assert len(kept) == len(given)
    for one, other in zip(kept, given, strict=True):
        # As text, because the p_final of a candidate that no sampler saw is NaN.
        assert repr([getattr(one, name) for name in FIGURES]) == repr([getattr(other, name) for name in FIGURES])
        assert (one.is_forced, one.is_resampled) == (other.is_forced, other.is_resampled)


def test_a_step_of_the_model_takes_less_than_two_kilobytes(completions: list[Completion], path: Path) -> None:
    steps = completions[0].steps
    assert np.all(steps.records["flags"] & INSPECTED)
    num_trials = 12
    with History.open(path) as history:
        for _ in range(num_trials):
            history.record(replace(make_trial(0), completion=completions[0]))
    assert path.stat().st_size / (num_trials * len(steps)) < 2000
