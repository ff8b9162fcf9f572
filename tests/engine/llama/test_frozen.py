"""Sampling again from kept candidates, against llama.cpp's chain on the whole rows with the same random numbers."""

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
import pytest

from engine.errors import ConfigError
from engine.llama import frozen, frozen_program
from engine.llama.candidates import Candidates
from engine.llama.distribution import Distribution, row_of
from engine.llama.frozen import FindFlips, FrozenSteps, Resampled, Resampler
from engine.llama.frozen_program import Kept, Steps, flips, resampled
from engine.llama.model import Model
from engine.llama.sampler import Sampler, chain_without_draw
from engine.specs import DEFAULT_SAMPLERS, Sampling
from engine.step_parts import FORCED
from engine.steps import StepTable
from tests.engine.llama.test_stages import NOTHING_CUT, some_row

K = 256


class Run:
    """Rows, and the steps that one chain drew from them."""

    def __init__(self, model: Model, sampling: Sampling, seed: int, num: int = 12) -> None:
        self.model, self.sampling = model, sampling
        noise = np.random.default_rng(seed)
        self.rows = [some_row(noise, model.num_vocab) for _ in range(num)]
        self.table = StepTable(model.vocabulary, K)
        sampler, seen, room = Sampler(sampling, seed, model, 512), Distribution(model.num_vocab), Candidates(4096)
        for logits in self.rows:
            row = row_of(logits)
            seen.look(row, max(K, sampler.num_presorted), is_measured=True)
            drawn = sampler.choose(row, seen, room)
            sampler.accept(drawn.token)
            self.table.append_bytes(seen.record(row, drawn, 0.0, K, room))
        sampler.close()

    def frozen(self, here: slice = slice(None)) -> FrozenSteps:
        return FrozenSteps.of(self.table, here)

    def again(self, sampling: Sampling, shown: int | None = None) -> Resampled:
        return resampled(Steps(self.frozen()), sampling, shown)

    def drawn(self, sampling: Sampling) -> list[tuple[int, int]]:
        """Return token and number of candidates left at each step, from the whole rows."""
        chain = chain_without_draw(sampling, self.model.num_vocab, 512)
        room, found = Candidates(self.model.num_vocab), []
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
def test_what_is_called_exact_is_what_the_whole_rows_give(
    model: Model, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(frozen_program, "MOST_OTHERS", draw.choice((10, 300, frozen_program.MOST_OTHERS)))
    run = Run(model, some_sampling(draw), seed)
    for sampling in (run.sampling, some_sampling(draw), some_sampling(draw)):
        expected = run.drawn(sampling)
        for index, (token, num_kept) in enumerate(expected):
            found = run.again(sampling, shown=index)
            if not found.is_exact[index] or len(np.unique(run.rows[index])) < model.num_vocab:
                continue
            assert found.ids[index] == token, (seed, sampling, index)
            assert abs(found.num_kept - num_kept) <= 1  # a sum that ends next to top_p is rounded either way
            assert np.frombuffer(found.p_final, np.float32).sum() == pytest.approx(1, abs=1e-4)


def test_the_defaults_are_exact_and_give_the_steps_themselves(model: Model) -> None:
    run = Run(model, Sampling(), 5, num=40)
    for index, step in enumerate(run.table):
        found = run.again(run.sampling, shown=index)
        assert found.is_exact == [True] * 40
        assert found.ids == run.table.ids
        p_final = np.frombuffer(found.p_final, np.float32)
        np.testing.assert_allclose(p_final, run.table.top_p_final[index], atol=2e-6)
        assert found.num_kept == step.num_kept


def test_a_forced_token_stays_and_the_others_are_drawn_as_before(model: Model) -> None:
    run = Run(model, Sampling(repeat_penalty=1.2), 5)
    run.table.records["draw"][4] = np.nan
    run.table.records["flags"][4] |= FORCED
    found = run.again(run.sampling, shown=4)
    assert found.ids == run.table.ids
    assert (found.is_exact[4], found.num_kept, found.p_final) == (True, 0, b"")


def test_a_flat_row_without_a_stage_that_cuts_is_not_exact(model: Model) -> None:
    run = Run(model, Sampling(temperature=1.0, **NOTHING_CUT), 7)
    found = run.again(run.sampling)
    assert not any(found.is_exact)
    assert not any(run.again(Sampling(top_n_sigma=1.0, **NOTHING_CUT)).is_exact)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("value", [-math.inf, -4.0, 3.0])
def test_a_bias_is_exact_only_where_no_other_token_could_come_before_it(model: Model, value: float, seed: int) -> None:
    run = Run(model, Sampling(), seed)
    biased = tuple((int(token), value) for token in run.table.top_ids[0, :6])
    for top_k in (40, K - 6, K):
        sampling = Sampling(top_k=top_k, logit_bias=biased, temperature=1.5)
        found = run.again(sampling)
        for index, (token, _num_kept) in enumerate(run.drawn(sampling)):
            if found.is_exact[index] and len(np.unique(run.rows[index])) == model.num_vocab:
                assert found.ids[index] == token, (top_k, index)
    assert run.again(Sampling(logit_bias=biased)).is_exact[0]


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
    num_sent = 0

    def steps() -> FrozenSteps:
        nonlocal num_sent
        num_sent += 1
        return run.frozen()

    for sampling in (other, Sampling(), other):
        for shown in (None, 3):
            assert resampler.resample("run", steps, sampling, shown) == run.again(sampling, shown)
    assert num_sent == 1
    one = run.frozen(slice(4, 5))
    assert resampler.flips(one, Sampling()) == flips(FindFlips(one, Sampling())).found


@pytest.mark.parametrize(
    "sampling",
    [Sampling(mirostat=2), Sampling(grammar='root ::= "a"'), Sampling(dry_multiplier=1), Sampling(xtc_probability=1)],
)
def test_what_the_candidates_do_not_decide_is_refused(model: Model, resampler: Resampler, sampling: Sampling) -> None:
    run = Run(model, Sampling(), 5, num=2)
    with pytest.raises(ConfigError, match="cannot be sampled again"):
        resampler.resample("run", run.frozen, sampling)


def test_steps_without_candidates_or_draws_are_refused(model: Model) -> None:
    run = Run(model, Sampling(), 5, num=2)
    bare = StepTable(model.vocabulary, 0)
    with pytest.raises(ConfigError, match="no candidates"):
        FrozenSteps.of(bare, slice(None))
    run.table.records["draw"][1] = np.nan
    with pytest.raises(ConfigError, match="was not drawn"):
        run.frozen()


def test_steps_are_sent_again_where_the_process_was_replaced(model: Model) -> None:
    run, resampler = Run(model, Sampling(), 5), Resampler()
    first = resampler.resample("run", run.frozen, Sampling())
    resampler._running().stop()
    assert resampler.resample("run", run.frozen, Sampling()) == first
    resampler.close()


def test_the_steps_not_asked_for_longest_make_room_for_others(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_program, "MOST_CANDIDATES", 2 * 12 * K)
    steps, kept = Steps(Run(model, Sampling(), 5).frozen()), Kept()
    for name in ("a", "b"):
        kept.add(name, steps)
    assert kept.find("a") is steps
    kept.add("c", steps)
    assert [kept.find(name) is steps for name in ("a", "b", "c")] == [True, False, True]


def test_more_steps_than_are_sampled_at_once_are_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "MOST_CANDIDATES", 11 * K)
    with pytest.raises(ConfigError, match="12 steps with 256 candidates; at most 11"):
        Run(model, Sampling(), 5).frozen()
