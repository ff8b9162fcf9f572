"""Difference of two models: figures of each token, flips, sentences, order of the most changed, vocabularies."""

import math
from dataclasses import replace

import numpy as np
import pytest

from engine.comparing.model_diff import ModelDiff, vocabulary_difference
from engine.steps import StepTable
from tests.engine.history.trial_maker import VOCABULARY, make_steps


def make_diff(num: int = 6, seed: int = 1, *, kl: float = 0.01, is_prompt: bool = False) -> ModelDiff:
    """Return a difference whose tokens have the same ids and other figures."""
    ours, theirs = make_steps(num, seed=seed), make_steps(num, seed=seed + 1)
    theirs.records["id"] = ours.records["id"]
    ids = (257, 300, 301, *ours.ids)
    return ModelDiff(ours, theirs, np.full(num, kl), ids, is_prompt)


def same(steps: StepTable) -> ModelDiff:
    return ModelDiff(steps, steps, np.zeros(len(steps)), tuple(steps.ids), False)


def test_the_figures_are_of_the_other_model_minus_the_first() -> None:
    diff = make_diff()
    for position, (one, other) in enumerate(zip(diff.steps, diff.other_steps, strict=True)):
        assert one.logprob is not None and other.logprob is not None
        assert diff.change[position] == pytest.approx(other.logprob - one.logprob)
        assert diff.is_flipped[position] == (one.top[0].id != other.top[0].id)
    assert diff.num_flips == sum(diff.is_flipped) > 0
    assert diff.first_flip == diff.is_flipped.tolist().index(True)
    logprobs = [step.logprob or 0 for step in diff.other_steps]
    assert diff.other_perplexity == pytest.approx(math.exp(-sum(logprobs) / len(logprobs)))


def test_the_most_changed_come_first_whatever_their_direction() -> None:
    diff = make_diff(30)
    found = diff.most_changed(10)
    sizes = np.abs(diff.change)
    assert [abs(one.change) for one in found] == sorted(sizes.tolist(), reverse=True)[:10]
    assert {one.change > 0 for one in found} == {True, False}
    assert [one.position for one in diff.changed()] == list(range(30))
    for one in found:
        step, other = diff.steps[one.position], diff.other_steps[one.position]
        assert (one.logprob, one.other_logprob) == (step.logprob, other.logprob)
        assert (one.best, one.other_best) == (step.top[0].text, other.top[0].text)
        assert one.text == VOCABULARY.text(step.id)


def test_the_context_is_the_text_before_the_token() -> None:
    diff = make_diff(30)
    vocabulary = diff.steps.vocabulary
    first, last = diff.changed()[0], diff.changed()[-1]
    assert first.before == vocabulary.text(300) + vocabulary.text(301)
    assert last.before == vocabulary.join(diff.ids[-13:-1]).decode("utf-8", "angle_bytes")


def test_a_model_does_not_differ_from_itself() -> None:
    diff = same(make_steps(4))
    assert (diff.num_flips, diff.first_flip, diff.kl_max) == (0, None, 0)
    assert diff.most_changed(10) == []
    assert diff.sentence == "No difference: both distributions are the same at all 4 tokens."


def test_the_sentence_names_divergence_and_the_first_flip() -> None:
    diff = make_diff()
    first = diff.first_flip
    assert first is not None
    assert diff.sentence == (
        f"KL 0.010 nats (0.014 bits) per token; the most probable token differs at {diff.num_flips} of 6 tokens, "
        f"first at token {first + 1}."
    )
    steps = make_steps(3)
    alike = replace(same(steps), kl=np.full(3, 0.5), is_prompt=True)
    assert alike.sentence == (
        "KL 0.50 nats (0.72 bits) per token; the most probable token is the same at all 3 prompt tokens."
    )


def test_a_token_that_both_rule_out_has_not_changed() -> None:
    steps = make_steps(3)
    steps.records["logprob"][1] = -np.inf
    assert same(steps).change.tolist() == [0, 0, 0]


def test_vocabularies_that_differ_are_told_apart() -> None:
    assert vocabulary_difference(VOCABULARY, replace(VOCABULARY)) == ""
    assert vocabulary_difference(VOCABULARY, replace(VOCABULARY, add_bos=False, bos=None)) == ""
    pieces = (*VOCABULARY.pieces[:300], b" zebra", *VOCABULARY.pieces[301:])
    other = replace(VOCABULARY, pieces=pieces)
    own = VOCABULARY.text(300)
    assert vocabulary_difference(VOCABULARY, other) == f"token 300 is {own!r} in one and ' zebra' in the other"
    shorter = replace(VOCABULARY, pieces=VOCABULARY.pieces[:-1], kinds=VOCABULARY.kinds[:-1])
    assert vocabulary_difference(VOCABULARY, shorter) == "4,096 tokens against 4,095"
    named = replace(VOCABULARY, names={257: "<end>"})
    assert "token 257 is '</s>' in one and '<end>' in the other" in vocabulary_difference(VOCABULARY, named)
