"""Sampling again from kept candidates, against llama.cpp's chain on the whole rows with the same random numbers."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
import pytest

from engine.errors import ConfigError
from engine.llama.candidates import Candidates
from engine.llama.distribution import Distribution, row_of
from engine.llama.frozen import FindFlips, FrozenSteps, Resample, Resampler
from engine.llama.frozen_program import flips, resampled
from engine.llama.model import Model
from engine.llama.sampler import Sampler, chain_without_draw
from engine.specs import DEFAULT_SAMPLERS, Sampling
from engine.steps import StepTable
from tests.engine.llama.test_stages import NOTHING_CUT, some_row

K, PROMPT = 256, [1, 300, 301, 302]


class Run:
    """Rows, and the steps that one chain drew from them."""

    def __init__(self, model: Model, sampling: Sampling, seed: int, num: int = 12) -> None:
        self.model, self.sampling = model, sampling
        noise = np.random.default_rng(seed)
        self.rows = [some_row(noise, model.num_vocab) for _ in range(num)]
        self.table = StepTable(model.vocabulary, K)
        sampler, seen, room = Sampler(sampling, seed, model, 512), Distribution(model.num_vocab), Candidates(4096)
        for token in PROMPT:
            sampler.accept(token)
        for logits in self.rows:
            row = row_of(logits)
            seen.look(row, max(K, sampler.num_presorted), is_measured=True)
            drawn = sampler.choose(row, seen, room)
            sampler.accept(drawn.token)
            self.table.append_bytes(seen.record(row, drawn, 0.0, K, room))
        sampler.close()

    def frozen(self, here: slice = slice(None)) -> FrozenSteps:
        return FrozenSteps.of(PROMPT, self.table, here)

    def drawn(self, sampling: Sampling) -> list[tuple[int, int]]:
        """Return token and number of candidates left at each step, from the whole rows."""
        chain = chain_without_draw(sampling, self.model.num_vocab, 512)
        room, found = Candidates(self.model.num_vocab), []
        for token in PROMPT:
            llama.llama_sampler_accept(chain, token)
        is_sorted = sampling.top_k > 0 and sampling.samplers[0] == "top_k"
        for logits, step in zip(self.rows, self.table, strict=True):
            biased = logits.copy()
            for token, bias in sampling.logit_bias:
                biased[token] += bias
            order = np.argsort(-biased, kind="stable") if is_sorted else np.arange(len(biased))
            room.fill(order, biased[order])
            llama.llama_sampler_apply(chain, room.pointer)
            left, draw = room.kept, step.draw
            assert draw is not None
            p = np.exp(left["logit"] - left["logit"].max())
            run = np.cumsum(p, dtype=np.float64)
            found.append((int(left["id"][np.searchsorted(run, run[-1] * draw)]), int((p > 0).sum())))
            llama.llama_sampler_accept(chain, step.id)
        llama.llama_sampler_free(chain)
        return found


def some_sampling(draw: random.Random) -> Sampling:
    """Return a random chain of stages that can be sampled again."""
    stages = [*DEFAULT_SAMPLERS]
    if draw.random() < 0.4:
        draw.shuffle(stages)
    options: dict[str, Any] = {
        "top_k": draw.choice((1, 3, 40, 200)),
        "top_p": draw.uniform(0.05, 0.99),
        "min_p": draw.uniform(0.005, 0.5),
        "typical_p": draw.uniform(0.05, 0.99),
        "repeat_penalty": draw.uniform(1, 1.5),
        "presence_penalty": draw.uniform(0, 1),
    }
    chosen = {name: value for name, value in options.items() if draw.random() < 0.5}
    temperature = draw.choice((0.0, 0.5, 0.8, 1.0, 1.7))
    return Sampling(**{**NOTHING_CUT, "temperature": temperature, **chosen}, samplers=tuple(stages))


@pytest.mark.parametrize("seed", range(60))
def test_what_is_called_exact_is_what_the_whole_rows_give(model: Model, seed: int) -> None:
    draw = random.Random(seed)
    run = Run(model, some_sampling(draw), seed)
    for sampling in (run.sampling, some_sampling(draw), some_sampling(draw)):
        found, expected = resampled(Resample(run.frozen(), sampling)), run.drawn(sampling)
        p_final = np.frombuffer(found.p_final, np.float32).reshape(len(run.table), K)
        for index, (token, num_kept) in enumerate(expected):
            if not found.is_exact[index] or len(np.unique(run.rows[index])) < model.num_vocab:
                continue
            assert found.ids[index] == token, (seed, sampling, index)
            assert abs(found.num_kept[index] - num_kept) <= 1  # a sum that ends next to top_p is rounded either way
            assert p_final[index].sum() == pytest.approx(1, abs=1e-4)


def test_the_defaults_are_exact_and_give_the_steps_themselves(model: Model) -> None:
    run = Run(model, Sampling(), 5, num=40)
    found = resampled(Resample(run.frozen(), run.sampling))
    assert found.is_exact == [True] * 40
    assert found.ids == run.table.ids
    p_final = np.frombuffer(found.p_final, np.float32).reshape(40, K)
    np.testing.assert_allclose(p_final, run.table.top_p_final, atol=2e-6)
    assert found.num_kept == [step.num_kept for step in run.table]


def test_a_flat_row_without_a_stage_that_cuts_is_not_exact(model: Model) -> None:
    run = Run(model, Sampling(temperature=1.0, **NOTHING_CUT), 7)
    found = resampled(Resample(run.frozen(), run.sampling))
    assert not any(found.is_exact)
    assert not any(resampled(Resample(run.frozen(), Sampling(top_n_sigma=1.0, **NOTHING_CUT))).is_exact)


@pytest.mark.parametrize("seed", range(25))
def test_a_flip_is_where_another_token_is_drawn_from_the_whole_row(model: Model, seed: int) -> None:
    sampling = Sampling(temperature=0.9, top_k=60, top_p=0.9, min_p=0.02)
    run = Run(model, sampling, seed, num=3)
    for index in range(3):
        if len(np.unique(run.rows[index])) < model.num_vocab:
            continue
        found = flips(FindFlips(run.frozen(slice(index, index + 1)), sampling)).found
        own = run.table.ids[index]
        assert len({(flip.parameter, flip.is_above) for flip in found}) == len(found)
        for flip in found:
            before = getattr(sampling, flip.parameter)
            assert flip.is_above == (flip.value > before) and flip.id != own
            for share in (-0.01, -1e-4, 1e-4, 0.01, 0.5):  # beyond the limit, and inside it
                way = before - flip.value
                value = flip.value + share * way
                if abs(share * way) < 3e-5 * flip.value:
                    continue  # less than what is rounded
                if flip.parameter == "top_k":
                    value = flip.value if share < 0 else flip.value + (1 if before > flip.value else -1)
                changed: Any = {flip.parameter: round(value) if flip.parameter == "top_k" else value}
                token = run.drawn(replace(sampling, **changed))[index][0]
                assert (token == own) == (share > 0), (seed, index, flip, share)
                assert share != -1e-4 or token == flip.id


@pytest.fixture(scope="module")
def resampler() -> Iterator[Resampler]:
    made = Resampler()
    yield made
    made.close()


def test_the_child_gives_the_same(model: Model, resampler: Resampler) -> None:
    run = Run(model, Sampling(), 5)
    other = Sampling(temperature=1.5, top_k=20)
    assert resampler.resample(run.frozen(), other) == resampled(Resample(run.frozen(), other))
    one = run.frozen(slice(4, 5))
    assert resampler.flips(one, Sampling()) == flips(FindFlips(one, Sampling())).found


@pytest.mark.parametrize(
    "sampling",
    [Sampling(mirostat=2), Sampling(grammar='root ::= "a"'), Sampling(dry_multiplier=1), Sampling(xtc_probability=1)],
)
def test_what_the_candidates_do_not_decide_is_refused(model: Model, resampler: Resampler, sampling: Sampling) -> None:
    run = Run(model, Sampling(), 5, num=2)
    with pytest.raises(ConfigError, match="cannot be sampled again"):
        resampler.resample(run.frozen(), sampling)


def test_steps_without_candidates_or_draws_are_refused(model: Model) -> None:
    run = Run(model, Sampling(), 5, num=2)
    bare = StepTable(model.vocabulary, 0)
    with pytest.raises(ConfigError, match="no candidates"):
        FrozenSteps.of(PROMPT, bare, slice(None))
    run.table.records["draw"][1] = np.nan
    with pytest.raises(ConfigError, match="was not drawn"):
        run.frozen()
