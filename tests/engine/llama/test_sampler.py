"""Sampler chain on the real library: the mirrored draw, the surviving candidates, grammar, bias."""

from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt
import pytest

from engine.errors import ConfigError
from engine.llama import grammar_sampler
from engine.llama.candidates import Candidates
from engine.llama.distribution import Distribution, Drawn, row_of
from engine.llama.model import Model
from engine.llama.sampler import Sampler
from engine.specs import Sampling
from engine.step_parts import RESAMPLED


class Bench:
    """Sampler applied to given rows, with the distribution and candidates it needs."""

    def __init__(self, model: Model, sampling: Sampling, seed: int = 7) -> None:
        self.size = model.num_vocab
        self.sampler = Sampler(sampling, seed, model, 512)
        self.distribution = Distribution(self.size)
        self.room = Candidates(self.size)

    def draw(self, logits: npt.NDArray[np.float32]) -> Drawn:
        row = row_of(logits)
        self.distribution.look(row, self.sampler.num_presorted, is_measured=False)
        choice = self.sampler.choose(row, self.distribution, self.room)
        self.sampler.accept(choice.token)
        return choice

    def finals(self) -> npt.NDArray[np.float32]:
        kept = self.room.kept
        finals = np.zeros(self.size, np.float32)
        finals[kept["id"]] = kept["p"]
        return finals


@pytest.fixture
def row() -> npt.NDArray[np.float32]:
    return np.random.default_rng(3).normal(scale=3, size=4096).astype(np.float32)


OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def test_the_mirrored_draw_decides(model: Model, row: npt.NDArray[np.float32]) -> None:
    bench = Bench(model, Sampling(temperature=1.0, **OFF))
    for _ in range(50):
        choice = bench.draw(row)
        p = bench.finals().astype(np.float64)
        below = p[: choice.token].sum()
        assert below - 1e-5 <= choice.draw <= below + p[choice.token] + 1e-5


def test_final_probabilities_are_a_distribution_over_the_survivors(model: Model, row: npt.NDArray[np.float32]) -> None:
    bench = Bench(model, Sampling(top_k=5, top_p=1.0, min_p=0.0, temperature=0.5))
    choice = bench.draw(row)
    p = bench.finals()
    best = np.argsort(-row)[:5]
    tempered = np.exp((row[best] - row[best[0]]) / 0.5)
    assert choice.token in best
    assert np.count_nonzero(p) == 5
    np.testing.assert_allclose(p[best], tempered / tempered.sum(), rtol=1e-4)


def test_top_p_keeps_the_token_that_crosses_the_limit(model: Model) -> None:
    row = np.full(model.num_vocab, -np.inf, np.float32)
    row[[10, 11, 12]] = np.log([0.5, 0.3, 0.2])
    bench = Bench(model, Sampling(top_k=0, top_p=0.7, min_p=0.0, temperature=1.0))
    bench.draw(row)
    assert bench.finals().nonzero()[0].tolist() == [10, 11]


def test_temperature_zero_takes_the_best(model: Model, row: npt.NDArray[np.float32]) -> None:
    bench = Bench(model, Sampling(temperature=0))
    best = bench.draw(row).token
    assert best == row.argmax()
    assert bench.finals().nonzero()[0].tolist() == [best]
    assert bench.finals()[best] == 1


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(top_k=3),
        Sampling(xtc_probability=0.5, xtc_threshold=0.05),
        Sampling(repeat_penalty=1.3, frequency_penalty=0.2),
        Sampling(dry_multiplier=0.8),
        Sampling(typical_p=0.5, top_n_sigma=1.0),
        Sampling(mirostat=1),
        Sampling(mirostat=2),
        Sampling(samplers=("temperature", "top_k")),
    ],
)
def test_the_same_seed_draws_the_same_tokens(model: Model, row: npt.NDArray[np.float32], sampling: Sampling) -> None:
    first, second, other = (Bench(model, sampling, seed) for seed in (7, 7, 8))
    tokens = [first.draw(row).token for _ in range(40)]
    assert tokens == [second.draw(row).token for _ in range(40)]
    assert tokens != [other.draw(row).token for _ in range(40)]


def test_breakers_are_searched_for_once_and_each_sampler_counts_for_itself(
    model: Model, row: npt.NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    init = llama.llama_sampler_init_dry

    def noted(*given: Any) -> Any:
        found.append(given)
        return init(*given)

    monkeypatch.setattr(llama, "llama_sampler_init_dry", noted)
    sampling = Sampling(dry_multiplier=5.0, dry_sequence_breakers=("q", "zz"), dry_allowed_length=1)
    first, second = Bench(model, sampling), Bench(model, sampling)
    assert len(found) == 1
    drawn = [first.draw(row) for _ in range(30)]
    assert [second.draw(row) for _ in range(30)] == drawn
    Bench(model, Sampling(dry_multiplier=5.0, dry_sequence_breakers=("q",), dry_allowed_length=1))
    assert len(found) == 2


def test_breakers_that_take_long_to_search_for_are_refused(model: Model) -> None:
    breakers = tuple(f"{number:040}" for number in range(32))
    with pytest.raises(
        ConfigError, match=r"1280 bytes in total; at most 512 are allowed with a vocabulary of 4,096 tokens"
    ):
        Bench(model, Sampling(dry_multiplier=1.0, dry_sequence_breakers=breakers))
    assert Bench(model, Sampling(dry_multiplier=1.0, dry_sequence_breakers=breakers[:12])).sampler


@pytest.mark.parametrize("temperature", [1e-6, 1e-20, 1e-37, 1e-40, 1e-44, 1e-300])
def test_a_temperature_next_to_0_is_greedy(model: Model, row: npt.NDArray[np.float32], temperature: float) -> None:
    bench = Bench(model, Sampling(temperature=temperature))
    assert [bench.draw(row).token for _ in range(5)] == [row.argmax()] * 5
    assert bench.finals()[row.argmax()] == 1


def test_memory_for_repetitions_is_no_longer_than_the_context(
    model: Model, row: npt.NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    for name in ("llama_sampler_init_dry", "llama_sampler_init_penalties"):
        init = getattr(llama, name)
        place = 4 if name.endswith("dry") else 1

        def noted(*given: Any, init: Any = init, place: int = place) -> Any:
            lengths.append(given[place])
            return init(*given)

        monkeypatch.setattr(llama, name, noted)
    asked: dict[str, Any] = {"dry_multiplier": 0.7, "repeat_penalty": 1.1}
    for length in (1 << 24, -1, 100):
        Bench(model, Sampling(**asked, dry_penalty_last_n=length, penalty_last_n=length)).draw(row)
    assert sorted(lengths) == [100, 100, 512, 512, 512]  # DRY with the same length is created only once


def test_advancing_equals_having_drawn(model: Model, row: npt.NDArray[np.float32]) -> None:
    sampling = Sampling(dry_multiplier=0.8, repeat_penalty=1.2)
    drawn, advanced = Bench(model, sampling), Bench(model, sampling)
    assert not advanced.sampler.needs_rows
    tokens = [drawn.draw(row).token for _ in range(20)]
    advanced.sampler.advance(tokens)
    assert [drawn.draw(row) for _ in range(20)] == [advanced.draw(row) for _ in range(20)]


def test_bias_bans_and_prefers(model: Model, row: npt.NDArray[np.float32]) -> None:
    best = int(row.argmax())
    banned = Bench(model, Sampling(temperature=0, logit_bias=((best, -np.inf),))).draw(row)
    assert banned.token == int(np.argsort(-row)[1])
    assert Bench(model, Sampling(temperature=0, logit_bias=((9, 100.0),))).draw(row).token == 9


@pytest.mark.parametrize("top_k", [40, 0])
def test_bans_that_leave_nothing_finite_are_refused(model: Model, top_k: int) -> None:
    row = np.full(model.num_vocab, -np.inf, np.float32)
    row[[5, 6]] = 1, 2
    assert Bench(model, Sampling(top_k=top_k, logit_bias=((6, -np.inf),))).draw(row).token == 5
    with pytest.raises(ConfigError, match="leaves no token"):
        Bench(model, Sampling(top_k=top_k, logit_bias=((5, -np.inf), (6, -np.inf)))).draw(row)


@pytest.mark.parametrize("bias", [{}, {5: -np.inf}, {5: 3.0, 17: -2.0, 4000: 30.0}])
def test_the_short_way_through_top_k_leaves_the_same_candidates(
    model: Model, row: npt.NDArray[np.float32], bias: dict[int, float]
) -> None:
    """With the temperature before top_k, the chain sees all logits instead of presorted candidates."""
    chain: dict[str, Any] = {"logit_bias": bias, "temperature": 1.0, "top_p": 1.0, "min_p": 0.0}
    short = Bench(model, Sampling(top_k=1000, **chain))
    whole = Bench(model, Sampling(top_k=1000, samplers=("temperature", "top_k"), **chain))
    assert (short.sampler.num_presorted, whole.sampler.num_presorted) == (1000 + len(bias), 0)
    assert short.draw(row) == pytest.approx(whole.draw(row))
    np.testing.assert_allclose(short.finals(), whole.finals(), rtol=1e-4)


def test_bias_outside_the_vocabulary_is_refused(model: Model) -> None:
    with pytest.raises(ConfigError, match="4,096"):
        Bench(model, Sampling(logit_bias=((4096, 1.0),)))


def test_the_grammar_marks_what_it_resampled(model: Model) -> None:
    yes, no = (model.vocabulary.pieces.index(piece) for piece in (b"y", b"n"))
    row = np.zeros(model.num_vocab, np.float32)
    row[[yes, no]] = 1, 9
    bench = Bench(model, Sampling(temperature=0, grammar='root ::= "y"'))
    choice = bench.draw(row)
    assert (choice.token, choice.flags) == (yes, RESAMPLED)
    with pytest.raises(ConfigError, match="does not allow"):
        bench.sampler.accept(no)


@pytest.mark.parametrize("text", ["root ::= (", 'other ::= "a"', "root ::= root"])
def test_a_wrong_grammar_is_a_config_error(model: Model, text: str) -> None:
    with pytest.raises(ConfigError, match="grammar"):
        Bench(model, Sampling(grammar=text))


def test_a_grammar_that_takes_too_long_for_one_token_ends_its_job(
    model: Model, row: npt.NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(model, Sampling(grammar="root ::= [a-z ]+"))
    bench.draw(row)
    monkeypatch.setattr(grammar_sampler, "MAX_CALL_S", 0.0)
    with pytest.raises(ConfigError, match="for one token; at most 0 s"):
        bench.draw(row)
