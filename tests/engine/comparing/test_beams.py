"""Beam search without a model: transformers' own search over the same distributions, and trees that no search makes."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.comparing.beams import MOST_BEAMS, MOST_NEW_TOKENS, BeamEnd, Beams, BeamSearch, BeamSpec
from engine.comparing.probable import Candidates
from engine.errors import ConfigError
from engine.vocabulary import TokenKind, Vocabulary

ENDS = (3, 7)
NUM_TOKENS = 40
VOCABULARY = Vocabulary(
    pieces=tuple(bytes([65 + token]) for token in range(NUM_TOKENS)),
    kinds=bytes(int(TokenKind.END) if token in ENDS else 0 for token in range(NUM_TOKENS)),
    names={},
    bos=None,
    add_bos=False,
    add_space_prefix=False,
)


@pytest.fixture(scope="module")
def networks() -> Iterator[list[LlamaForCausalLM]]:
    """Small networks with random weights, whose texts end after a few tokens."""
    torch.set_num_threads(1)
    made = []
    for seed in range(4):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=NUM_TOKENS, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, initializer_range=0.35, bos_token_id=0, eos_token_id=list(ENDS), pad_token_id=0,
        )  # fmt: skip
        network = LlamaForCausalLM(config).eval()
        for end in ENDS:
            network.lm_head.weight.data[end] += 0.3 * network.lm_head.weight.data.std()
        made.append(network)
    yield made


def found_by(network: Any, prompt: list[int], spec: BeamSpec) -> Beams:
    search = BeamSearch(spec)
    k = search.num_candidates(spec, len(ENDS))
    while not search.is_over:
        with torch.no_grad():
            rows = network(torch.tensor([[*prompt, *prefix] for prefix in search.prefixes])).logits[:, -1]
        tops = rows.log_softmax(-1).topk(k)
        found = zip(tops.indices.tolist(), tops.values.tolist(), strict=True)
        search.expand([Candidates(ids, logprobs, [one in ENDS for one in ids]) for ids, logprobs in found])
    return search.result(VOCABULARY, num_computed=0, num_least=0)


def theirs(network: Any, prompt: list[int], spec: BeamSpec) -> list[tuple[tuple[int, ...], float]]:
    with torch.no_grad():
        made = network.generate(
            torch.tensor([prompt]), do_sample=False, num_beams=spec.num_beams, length_penalty=spec.length_penalty,
            early_stopping=spec.early_stopping, max_new_tokens=spec.max_new_tokens, output_scores=True,
            num_return_sequences=spec.num_returned, return_dict_in_generate=True,
        )  # fmt: skip
    rows = made.sequences[:, len(prompt) :].tolist()
    ends = [next((at + 1 for at, token in enumerate(row) if token in ENDS), len(row)) for row in rows]
    cut = (tuple(row[:end]) for row, end in zip(rows, ends, strict=True))
    return list(zip(cut, made.sequences_scores.tolist(), strict=True))


@pytest.mark.parametrize(
    ("num_beams", "length_penalty", "early_stopping"),
    [*product((4,), (-1.0, 0.0, 1.0, 2.5), (False, True, "never")), (2, 0.5, False), (8, 1.0, "never")],
)
def test_the_sequences_and_scores_of_transformers(
    networks: list[LlamaForCausalLM], num_beams: int, length_penalty: float, early_stopping: Any
) -> None:
    spec = BeamSpec(
        num_beams=num_beams, length_penalty=length_penalty, early_stopping=early_stopping, max_new_tokens=12
    )
    for network, prompt in product(networks, ([2, 1], [5, 9, 11])):
        ours, expected = found_by(network, prompt, spec).sequences, theirs(network, prompt, spec)
        assert [one.ids for one in ours] == [ids for ids, _ in expected]
        assert [one.score for one in ours] == pytest.approx([score for _, score in expected], abs=1e-4)


def test_texts_of_these_networks_end_at_different_tokens(networks: list[LlamaForCausalLM]) -> None:
    found = [one for network in networks for one in found_by(network, [2, 1], BeamSpec(max_new_tokens=12)).sequences]
    assert len({len(one.ids) for one in found if one.is_ended}) > 2


def test_fewer_sequences_can_be_returned_and_the_others_are_pruned(networks: list[LlamaForCausalLM]) -> None:
    spec = BeamSpec(num_beams=4, max_new_tokens=8)
    every = found_by(networks[0], [2, 1], spec)
    best = found_by(networks[0], [2, 1], replace(spec, num_return_sequences=1))
    assert best.sequences == every.sequences[:1]
    left = {one.ids for one in best.pruned(1000)}
    assert left >= {one.ids for one in every.sequences[1:]} and best.num_pruned == len(left) > 3
    totals = [one.logprob for one in best.pruned(5)]
    assert len(totals) == 5 and totals == sorted(totals, reverse=True)
    assert {one.score for one in best.pruned(1000) if one.ids == every.sequences[1].ids} == {every.sequences[1].score}


def test_a_sequence_has_its_text_and_the_sum_of_its_logprobs(networks: list[LlamaForCausalLM]) -> None:
    (best, *_) = found_by(networks[1], [2, 1], BeamSpec(length_penalty=0.0)).sequences
    assert best.text == "".join(chr(65 + token) for token in best.ids)
    assert best.score == pytest.approx(best.logprob) == pytest.approx(sum(best.logprobs))


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 0}, {"num_beams": MOST_BEAMS + 1}, {"num_beams": True}, {"length_penalty": float("nan")},
        {"early_stopping": "always"}, {"early_stopping": None}, {"max_new_tokens": 0},
        {"max_new_tokens": MOST_NEW_TOKENS + 1}, {"num_beams": 2, "num_return_sequences": 3},
        {"num_return_sequences": 0}, {"beams": 4},
    ],
)  # fmt: skip
def test_parameters_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        BeamSpec(**options)


GOOD = Beams(BeamSpec(num_beams=2), (-1, -1, 0), (4, 5, 3), (-1.0, -2.0, -0.5), (BeamEnd(2, -0.75),), 3, 3, VOCABULARY)


@pytest.mark.parametrize(
    "changes",
    [
        {"parents": (), "ids": (), "logprobs": ()},
        {"parents": (-1, -1)},
        {"parents": (-1, -1, 2)},
        {"parents": (-1, -2, 0)},
        {"ids": (4, 5, 1 << 31)},
        {"ids": (4, 5, -1)},
        {"logprobs": (-1.0, float("nan"), -0.5)},
        {"logprobs": (-1.0, 1000.0, -0.5)},
        {"logprobs": (-1.0, 0.5, -0.5)},
        {"logprobs": (-1.0, -1e308, -0.5)},
        {"ends": ()},
        {"ends": (BeamEnd(3, -0.75),)},
        {"ends": (BeamEnd(2, float("-inf")),)},
        {"ends": (BeamEnd(2, -0.75),) * 3},
        {"ends": (BeamEnd(2, -0.75),) * 2},
        {"ends": (BeamEnd(1, -2.0), BeamEnd(2, -0.75))},
        {"ends": (BeamEnd(0, -1.0),)},
        {"ends": (BeamEnd(2, -0.7),)},
        {"spec": BeamSpec(num_beams=2, max_new_tokens=1)},
    ],
)
def test_a_tree_that_no_search_makes_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        replace(GOOD, **changes)


def test_a_probability_of_one_may_be_rounded_up() -> None:
    rounded = replace(GOOD, logprobs=(1e-6, -2.0, 0.0), ends=(BeamEnd(2, 5e-7), BeamEnd(1, -2.0)))
    assert [one.ids for one in rounded.sequences] == [(4, 3), (5,)] and rounded.best_ids == (4, 3)
