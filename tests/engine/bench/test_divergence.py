"""Divergence: exact where all candidates are known, otherwise never above the truth; zero for equal configurations."""

import numpy as np
import pytest
from scipy import special, stats

from engine.bench.analysis.divergence import divergence, divergence_of_texts
from engine.bench.measurement.answers import NUM_CANDIDATES, Answers, answers
from engine.errors import ConfigError, JobTimeout, PromptTooLong
from engine.pool.pool import Pool

PROMPTS = ("Once upon a time", "The old house at the end of the lane was", "She opened the letter and")
NUM_VOCAB = 300


def recorded(logits: np.ndarray, num_candidates: int, greedy: tuple[tuple[int, ...], ...] = ((1, 2),)) -> Answers:
    """Return answers whose positions have these logits, with only `num_candidates` candidates of each known."""
    logprobs = special.log_softmax(logits, axis=1)
    ids = np.argsort(-logprobs, axis=1)[:, :num_candidates]
    kept = np.take_along_axis(logprobs, ids, axis=1)
    return Answers(((7,),), greedy, ((7, 1, 2),), ids.astype(np.int32), kept.astype(np.float32), logits.shape[1])


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 3, (40, NUM_VOCAB))


def test_it_is_the_kl_of_the_whole_distribution_where_all_of_it_is_known(logits: np.ndarray) -> None:
    other = logits + np.random.default_rng(1).normal(0, 0.5, logits.shape)
    truth = stats.entropy(special.softmax(logits, axis=1), special.softmax(other, axis=1), axis=1)
    found = divergence(recorded(logits, NUM_VOCAB), recorded(other, NUM_VOCAB))
    assert found.kl_mean == pytest.approx(truth.mean(), rel=1e-5)
    assert found.kl_max == pytest.approx(truth.max(), rel=1e-5)
    assert found.num_tokens == 40


def test_fewer_candidates_never_tell_of_more_than_there_is(logits: np.ndarray) -> None:
    other = logits + np.random.default_rng(1).normal(0, 0.5, logits.shape)
    truth = stats.entropy(special.softmax(logits, axis=1), special.softmax(other, axis=1), axis=1).mean()
    means = [divergence(recorded(logits, num), recorded(other, num)).kl_mean for num in (1, 16, 64, 256, NUM_VOCAB)]
    assert 0 < means[0] < truth
    assert all(mean <= truth * (1 + 1e-5) for mean in means)
    assert means[-2] > 0.95 * truth


def test_the_same_figures_do_not_diverge(logits: np.ndarray) -> None:
    found = divergence(recorded(logits, 16), recorded(logits, 16))
    assert (found.kl_mean, found.kl_max, found.first_difference) == (0, 0, None)
    assert found.facts == {"kl_mean": 0, "kl_max": 0, "num_different": 0}
    assert found.sentence.startswith("Answers match the reference: all 1 greedy answers are the same (KL 0 nats")


def test_candidates_that_are_missing_are_left_out(logits: np.ndarray) -> None:
    full = recorded(logits, NUM_VOCAB)
    width = ((0, 0), (0, 20))
    padded = full._replace(
        top_ids=np.pad(full.top_ids, width, constant_values=-1), top_logprobs=np.pad(full.top_logprobs, width)
    )
    assert divergence(padded, full).kl_max == 0


@pytest.mark.parametrize(
    ("theirs", "first", "num_different"),
    [
        (((1, 2, 3), (4, 5), (6,)), None, 0),
        (((1, 2, 9), (4, 5), (6,)), 2, 1),
        (((1, 2), (4, 9), (6,)), 1, 2),
        (((1, 2, 3), (4, 5), (6, 7)), 1, 1),
    ],
)
def test_the_first_difference_is_that_of_the_answer_that_parts_soonest(
    logits: np.ndarray, theirs: tuple[tuple[int, ...], ...], first: int | None, num_different: int
) -> None:
    ours = recorded(logits, 8, ((1, 2, 3), (4, 5), (6,)))
    found = divergence(ours, recorded(logits, 8, theirs))
    assert (found.first_difference, found.num_different, found.num_answers) == (first, num_different, 3)
    if first is not None:
        assert f"{num_different} of 3 greedy answers, the first at token {first + 1} " in found.sentence
        assert found.facts["first_difference"] == first


def test_answers_to_other_tokens_are_not_compared(logits: np.ndarray) -> None:
    with pytest.raises(ConfigError, match="to different tokens"):
        divergence(recorded(logits, 8), recorded(logits, 8)._replace(forced=((7, 1, 3),)))


def test_a_configuration_does_not_diverge_from_itself(pool: Pool) -> None:
    reference = answers(pool, PROMPTS, num_tokens=12)
    assert [len(ids) for ids in reference.greedy] == [12, 12, 12]
    assert reference.forced == tuple(p + a for p, a in zip(reference.prompts, reference.greedy, strict=True))
    positions = sum(len(ids) - 1 for ids in reference.forced)
    assert reference.top_ids.shape == reference.top_logprobs.shape == (positions, NUM_CANDIDATES)
    found = divergence(reference, answers(pool, reference, num_tokens=12))
    assert (found.kl_max, found.first_difference, found.num_tokens) == (0, None, positions)


@pytest.mark.parametrize("before", ["", " ", "\n  "])
def test_the_spaces_before_a_servers_text_move_no_difference(pool: Pool, logits: np.ndarray, before: str) -> None:
    ids = tuple(pool.tokenize(" Once upon a time"))
    whole, most = (pool.vocabulary.join(each).decode() for each in (ids, ids[:-1]))
    assert whole.startswith(" ")
    reference = recorded(logits, 8, (ids,))
    same = divergence_of_texts(reference, pool.vocabulary, [before + whole.strip()])
    assert same == {"num_different": 0}
    other = divergence_of_texts(reference, pool.vocabulary, [before + most.strip() + " banana"])
    assert other == {"num_different": 1, "first_difference": len(ids) - 1}


def test_forced_figures_agree_with_the_greedy_choice(pool: Pool) -> None:
    reference = answers(pool, PROMPTS[:1], num_tokens=12)
    assert tuple(reference.top_ids[-12:, 0].tolist()) == reference.greedy[0]


def test_coarse_keys_and_values_are_seen(pool: Pool) -> None:
    reference = answers(pool, PROMPTS, num_tokens=24)
    with Pool(pool.model, parallel=1, n_ctx=256, type_k="q4_0", type_v="q4_0", flash_attn=True) as coarse:
        found = divergence(reference, answers(coarse, reference, num_tokens=24))
    assert 0 < found.kl_mean < found.kl_max < 5
    assert found.num_answers == 3


def test_what_cannot_be_asked_is_refused(pool: Pool) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        answers(pool, [])
    reference = answers(pool, PROMPTS[:1], num_tokens=2)
    with pytest.raises(ConfigError, match=r"a vocabulary of 7 tokens and this model 4,096"):
        answers(pool, reference._replace(num_vocab=7))
    with pytest.raises(PromptTooLong):
        answers(pool, ["word " * 2000])
    with pytest.raises(JobTimeout):
        answers(pool, PROMPTS, num_tokens=200, timeout_s=0.001)
