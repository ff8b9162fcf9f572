"""Sampler stages as recorded with a step, against llama.cpp's own chain cut off after each stage."""

import math
import random
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt
import pytest

from engine.llama import sampler as samplers
from engine.llama.candidates import Candidates
from engine.llama.distribution import Distribution, row_of
from engine.llama.model import Model
from engine.llama.sampler import Sampler
from engine.specs import DEFAULT_SAMPLERS, MAX_RECORDED, Sampling
from engine.stages import stages_of
from engine.steps import StepTable, TokenStep

K, N_CTX = 20, 512
NOTHING_CUT: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
Logits = npt.NDArray[np.float32]


class Recorder:
    """A sampler whose steps are recorded with their stages."""

    def __init__(self, model: Model, sampling: Sampling, seed: int, k: int = K) -> None:
        self.sampler, self._k = Sampler(sampling, seed, model, N_CTX), k
        self._seen, self._room = Distribution(model.num_vocab), Candidates(model.num_vocab)
        self._model = model

    def step(self, logits: Logits) -> tuple[TokenStep, StepTable]:
        row = row_of(logits)
        self._seen.look(row, max(self._k, self.sampler.num_presorted), is_measured=True)
        drawn = self.sampler.choose(row, self._seen, self._room, followed=self._k)
        self.sampler.accept(drawn.token)
        table = StepTable(self._model.vocabulary, self._k, stages=self.sampler.stages)
        table.append_bytes(self._seen.record(row, drawn, 0.0, self._k, self._room, num_stages=len(self.sampler.stages)))
        return table[0], table


class Prefixes:
    """llama.cpp's chain after its first stage, after its second, and so on, each a chain of its own on all tokens."""

    def __init__(self, model: Model, sampling: Sampling, seed: int) -> None:
        self._sampling, self._room = sampling, Candidates(model.num_vocab)
        num_stages = len(samplers._stages(sampling, seed, model, N_CTX)) - (sampling.mirostat == 0)
        self._chains = []
        for num in range(1, num_stages + 1):
            chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
            for _name, stage in samplers._stages(sampling, seed, model, N_CTX)[:num]:
                llama.llama_sampler_chain_add(chain, stage)
            self._chains.append(chain)

    def kept(self, logits: Logits) -> list[set[int]]:
        """Return the tokens left after each stage, those of the bias first where it bans."""
        biased = logits.copy()
        for token, bias in self._sampling.logit_bias:
            biased[token] += bias
        found = [set(np.flatnonzero(np.isfinite(biased)).tolist())] if self._sampling.logit_bias else []
        for chain in self._chains:
            self._room.fill(np.arange(len(logits)), biased)
            llama.llama_sampler_apply(chain, self._room.pointer)
            left = self._room.kept
            found.append(set(left["id"][np.isfinite(left["logit"])].tolist()))
        return found

    def accept(self, token: int) -> None:
        for chain in self._chains:
            llama.llama_sampler_accept(chain, token)

    def close(self) -> None:
        for chain in self._chains:
            llama.llama_sampler_free(chain)


def some_sampling(draw: random.Random) -> Sampling:
    """Return a random chain in a random order; each stage is off in half of them."""
    if draw.random() < 0.15:
        return Sampling(mirostat=draw.choice((1, 2)), temperature=draw.uniform(0.3, 2))
    stages = [*DEFAULT_SAMPLERS]
    if draw.random() < 0.5:
        draw.shuffle(stages)
    options: dict[str, Any] = {
        "temperature": draw.choice((0, 0.5, 0.8, 1.0, 1.7)),
        "top_k": draw.choice((1, 3, 40, 300, 5000)),
        "top_p": draw.uniform(0.05, 0.99),
        "min_p": draw.uniform(0.001, 0.5),
        "typical_p": draw.uniform(0.05, 0.99),
        "top_n_sigma": draw.uniform(0.5, 3),
        "xtc_probability": 1.0,
        "repeat_penalty": draw.uniform(0.8, 1.5),
        "presence_penalty": draw.uniform(-1, 1),
        "dry_multiplier": 0.8,
        "logit_bias": tuple((token, draw.choice((-math.inf, 2.0, -3.0))) for token in draw.sample(range(4096), 5)),
    }
    chosen = {name: value for name, value in options.items() if draw.random() < 0.5}
    return Sampling(**{**NOTHING_CUT, "xtc_threshold": draw.uniform(0.01, 0.3), **chosen}, samplers=tuple(stages))


def some_row(draw: np.random.Generator, num_vocab: int) -> Logits:
    """Return logits that fall off steeply or hardly, or of whole numbers, among which there are many ties."""
    row = draw.normal(scale=draw.choice([0.1, 1, 3, 6]), size=num_vocab).astype(np.float32)
    return row if draw.random() < 0.7 else np.round(row)


def check(model: Model, seed: int, num_rows: int) -> None:
    """Compare `num_rows` steps of one chain; rows of which a stage cut one of two equal tokens only in number."""
    draw, noise = random.Random(seed), np.random.default_rng(seed)
    sampling = some_sampling(draw)
    recorder, prefixes = Recorder(model, sampling, seed), Prefixes(model, sampling, seed)
    names = stages_of(sampling)
    for _ in range(num_rows):
        logits = some_row(noise, model.num_vocab)
        logits[noise.integers(0, 4096, 3)] += 6
        expected = prefixes.kept(logits)
        step, table = recorder.step(logits)
        prefixes.accept(step.id)
        stages = step.stages
        assert table.stage_columns is not None
        assert tuple(stage.name for stage in stages) == names
        assert [stage.kept for stage in stages] == [len(kept) for kept in expected], (seed, sampling)
        p = np.exp(logits.astype(np.float64) - table.records["normaliser"][0])
        masses = [float(p[list(kept)].sum()) for kept in expected]
        has_ties = len(np.unique(logits)) < len(logits)
        if not (has_ties and {"logit_bias", "penalties", "dry"} & set(names)):  # which of two equal ones is cut differs
            np.testing.assert_allclose([stage.mass for stage in stages], masses, rtol=2e-5, atol=2e-6)
        assert step.num_kept is not None and step.num_kept <= stages[-1].kept
        if not has_ties:
            for token, cut_by in zip(table.top_ids[0].tolist(), table.stage_columns.cut[0].tolist(), strict=True):
                first = next((at for at, kept in enumerate(expected, 1) if token not in kept), 0)
                assert cut_by == first, (seed, sampling, token)
        assert step.id in expected[-1] or has_ties
    prefixes.close()
    recorder.sampler.close()


@pytest.mark.parametrize("seed", range(30))
def test_each_stage_leaves_what_llama_cpp_leaves(model: Model, seed: int) -> None:
    check(model, seed, 20)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 500))
def test_each_of_many_stages_leaves_what_llama_cpp_leaves(model: Model, seed: int) -> None:
    check(model, seed, 25)


@pytest.mark.parametrize("options", [{}, {"top_k": 5}, NOTHING_CUT, {"logit_bias": ((300, -math.inf), (301, 2.0))}])
def test_a_grammar_cuts_where_it_rejected_the_first_draw(model: Model, options: dict[str, Any]) -> None:
    sampling = Sampling(**{"temperature": 0.0, **options}, grammar='root ::= "y" [a-z]*')
    letters = {token for token, piece in enumerate(model.vocabulary.pieces) if piece and b"yes".startswith(piece)}
    logits = np.random.default_rng(5).normal(size=model.num_vocab).astype(np.float32)
    logits[next(iter(set(range(310, 400)) - letters))] = 20
    recorder = Recorder(model, sampling, 1)
    step, table = recorder.step(logits)
    at = table.stages.index("grammar")
    (num_before,) = [stage.kept for stage in step.stages[:at]] or [model.num_vocab]
    assert step.is_resampled and step.bytes.startswith(b"y")
    assert step.stages[at].kept < 100 < num_before and step.stages[at].mass < 0.5
    assert step.id not in step.stages[at].cut and len(step.stages[at].cut) >= K - 2
    assert [stage.kept for stage in step.stages[at:]] == sorted((s.kept for s in step.stages[at:]), reverse=True)
    recorder.sampler.close()


def test_a_grammar_that_allows_the_first_draw_cuts_nothing(model: Model) -> None:
    sampling = Sampling(temperature=0.0, grammar="root ::= [a-z]+")
    letters = [token for token, piece in enumerate(model.vocabulary.pieces) if piece.isalpha() and piece.islower()]
    logits = np.random.default_rng(5).normal(size=model.num_vocab).astype(np.float32)
    logits[letters[7]] = 20
    recorder = Recorder(model, sampling, 1)
    step, _ = recorder.step(logits)
    assert step.id == letters[7] and not step.is_resampled
    assert step.stages[0] == ("grammar", model.num_vocab, 1.0, ())
    recorder.sampler.close()


@pytest.mark.parametrize("biases", [(), ((300, -math.inf),)])
def test_candidates_that_the_grammar_forbids_are_reported_even_where_nothing_was_rejected(
    model: Model, biases: tuple[tuple[int, float], ...]
) -> None:
    sampling = Sampling(grammar="root ::= [a-z]+", logit_bias=biases, top_k=30, seed=1)
    recorder = Recorder(model, sampling, 1)
    noise = np.random.default_rng(3)
    num_rejected = num_possible = 0
    for _ in range(40):
        logits = noise.normal(scale=4, size=model.num_vocab).astype(np.float32)
        before = llama.llama_sampler_clone(recorder.sampler._grammar._handle)  # type: ignore[union-attr]
        step, table = recorder.step(logits)
        everything = Candidates(model.num_vocab)
        left = everything.fill(np.arange(model.num_vocab), logits)
        llama.llama_sampler_apply(before, everything.pointer)
        llama.llama_sampler_free(before)
        assert step.forbidden == tuple(token for token in table.top_ids[0].tolist() if left[token] == -math.inf)
        assert step.id not in step.forbidden
        if step.is_resampled:
            num_rejected += 1
            assert not {one.id for one in step.top if one.p_final > 0} & set(step.forbidden)
        else:
            num_possible += sum(one.p_final > 0 and one.id in step.forbidden for one in step.top)
    assert num_rejected and num_possible
    recorder.sampler.close()


def test_without_a_grammar_nothing_is_forbidden(model: Model) -> None:
    recorder = Recorder(model, Sampling(), 1)
    step, _ = recorder.step(np.random.default_rng(3).normal(size=model.num_vocab).astype(np.float32))
    assert step.forbidden == ()
    recorder.sampler.close()


def test_no_candidate_keeps_the_stage_that_cut_one_at_the_step_before(model: Model) -> None:
    recorder = Recorder(model, Sampling(min_p=0.05, top_k=0, top_p=1.0), 1, MAX_RECORDED)
    steep, flat = np.zeros(model.num_vocab, np.float32), np.linspace(0, 0.1, model.num_vocab, dtype=np.float32)
    steep[7] = 30
    for logits, cut in ((steep, [0] + [1] * (MAX_RECORDED - 1)), (flat, [0] * MAX_RECORDED)):
        _, table = recorder.step(logits)
        assert table.stage_columns is not None
        assert table.stage_columns.cut[0].tolist() == cut
    recorder.sampler.close()
