"""Scoring with whole distributions: figures and KL divergence against numpy on llama.cpp's own logits."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import log_softmax, rel_entr

from engine.errors import ConfigError, ModelError, WorkerDied
from engine.llama.context import Chunk, Context
from engine.llama.model import Model
from engine.llama.scoring import ScoredSteps, ScoringModel, row_bytes
from engine.llama.scoring_program import Rows, kl_divergence
from engine.specs import PoolSpec
from engine.step_parts import FORCED, INSPECTED
from engine.vocabulary import Vocabulary
from tests.waiting import until

TEXT = (
    "Once upon a time there lived a king who had three daughters, and the youngest was so beautiful that the sun "
    "itself, which has seen so much, was astonished whenever it shone in her face. "
) * 5
SPEC = PoolSpec(parallel=1, n_ctx=512, n_ubatch=64, threads=1)
FIRST = 90
WITHIN_S = 60.0

Score = Callable[..., ScoredSteps]


@pytest.fixture(scope="module")
def vocabulary(model: Model) -> Vocabulary:
    return model.vocabulary


@pytest.fixture(scope="module")
def ids(model: Model) -> list[int]:
    return model.tokenize(TEXT)


@pytest.fixture
def score(ids: list[int], vocabulary: Vocabulary, tmp_path: Path) -> Score:
    """Function that scores the text from FIRST on; the first model writes its rows, later ones read them."""

    def scored(path: Path, spec: PoolSpec = SPEC, first: int = FIRST) -> ScoredSteps:
        rows = tmp_path / "rows"
        found = ScoringModel(path, spec, rows, compares=rows.exists(), num_candidates=10)
        try:
            found.load(WITHIN_S)
            return found.steps(ids, first, vocabulary, lambda _share: None)
        finally:
            found.close()

    return scored


def logprobs(path: Path, ids: list[int], spec: PoolSpec = SPEC) -> npt.NDArray[np.float64]:
    """Return the log-probabilities of the whole vocabulary after each token, in batches like those of the program."""
    loaded = Model(str(path), spec)
    context = Context(loaded, spec, 1, 1)
    rows = []
    edges = [*range(0, FIRST - 1, 64), *range(FIRST - 1, len(ids) - 1, 64), len(ids) - 1]
    for start, stop in pairwise(edges):
        num_rows = context.fill([Chunk(0, ids[start:stop], start, stop - start)])
        assert context.decode() == 0
        rows.append(np.array([row.logits for row in context.logits(num_rows)], np.float64))
    context.close()
    loaded.close()
    found: npt.NDArray[np.float64] = log_softmax(np.concatenate(rows), axis=1)
    return found


def test_every_figure_equals_numpy_on_the_logits_of_both_models(
    story_model: Path, quantised_model: Path, ids: list[int], score: Score
) -> None:
    ours, theirs = score(story_model), score(quantised_model)
    log_p, log_q = (logprobs(path, ids)[FIRST - 1 :] for path in (story_model, quantised_model))
    assert len(ours.steps) == len(theirs.steps) == len(theirs.kl) == len(ids) - FIRST > 64
    assert not len(ours.kl)
    for found, exact in ((ours.steps, log_p), (theirs.steps, log_q)):
        assert found.ids == ids[FIRST:]
        assert (found.records["flags"] == INSPECTED).all()
        own = exact[np.arange(len(exact)), found.ids]
        assert found.records["logprob"] == pytest.approx(own, abs=1e-6)
        assert found.records["rank"].tolist() == (1 + (exact > own[:, None]).sum(axis=1)).tolist()
        assert found.top_ids.tolist() == np.argsort(-exact, axis=1, kind="stable")[:, :10].tolist()
    kl = rel_entr(np.exp(log_p), np.exp(log_q)).sum(axis=1)
    assert theirs.kl == pytest.approx(kl, rel=1e-6, abs=1e-9)
    assert theirs.kl.min() > 0 and theirs.kl.mean() == pytest.approx(kl.mean(), rel=1e-8)


def test_the_divergence_agrees_with_the_high_level_class(
    story_model: Path, quantised_model: Path, ids: list[int], score: Score
) -> None:
    """Its batches and weight layout are others, which moves logits; the mean divergence stays within a few per cent."""
    score(story_model)
    ours = score(quantised_model).kl
    distributions = []
    for path in (story_model, quantised_model):
        llama = llama_cpp.Llama(str(path), n_ctx=512, n_threads=2, logits_all=True, flash_attn=True, verbose=False)
        llama.eval(ids[:-1])
        distributions.append(log_softmax(llama.scores[FIRST - 1 : len(ids) - 1].astype(np.float64), axis=1))
        llama.close()
    log_p, log_q = distributions
    theirs = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
    assert ours.mean() == pytest.approx(theirs.mean(), rel=0.05)


def test_a_model_does_not_diverge_from_itself(story_model: Path, score: Score) -> None:
    ours, again = score(story_model), score(story_model)
    assert (again.kl == 0).all() and again.steps == ours.steps


def test_another_type_of_keys_and_values_diverges_a_little(story_model: Path, score: Score) -> None:
    score(story_model)
    other = score(story_model, PoolSpec(parallel=1, n_ctx=512, n_ubatch=64, threads=1, type_k="q4_0", type_v="q4_0"))
    assert 0 < other.kl.mean() < 0.1


@pytest.mark.parametrize("first", [1, 2, 64, 65, 66])
def test_any_token_may_be_the_first_that_is_scored(story_model: Path, ids: list[int], score: Score, first: int) -> None:
    found = score(story_model, first=first)
    assert found.steps.ids == ids[first:]
    assert all(step.logprob is not None and not step.is_forced for step in found.steps)
    assert not (found.steps.records["flags"] & FORCED).any()


def test_rows_take_the_bytes_that_are_announced(
    story_model: Path, ids: list[int], score: Score, tmp_path: Path
) -> None:
    score(story_model)
    num_vocab = len(Model(str(story_model), SPEC, vocab_only=True).vocabulary)
    assert (tmp_path / "rows").stat().st_size == (len(ids) - FIRST) * row_bytes(num_vocab)


def test_a_file_with_too_few_rows_is_an_error(story_model: Path, score: Score, tmp_path: Path) -> None:
    score(story_model)
    rows = tmp_path / "rows"
    rows.write_bytes(rows.read_bytes()[:-1])
    with pytest.raises(ModelError, match="shorter than expected"):
        score(story_model)


def test_a_file_that_is_no_model_is_an_error(score: Score, tmp_path: Path) -> None:
    (tmp_path / "none.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelError, match="could not load"):
        score(tmp_path / "none.gguf")


def test_a_token_outside_the_vocabulary_is_an_error(story_model: Path, vocabulary: Vocabulary, tmp_path: Path) -> None:
    found = ScoringModel(story_model, SPEC, tmp_path / "rows", compares=False, num_candidates=1)
    found.load(WITHIN_S)
    with pytest.raises(ConfigError, match="must be from 0 to"):
        found.steps([1, 2, len(vocabulary)], 1, vocabulary, lambda _share: None)
    found.close()


def test_closing_ends_a_request(story_model: Path, ids: list[int], vocabulary: Vocabulary, tmp_path: Path) -> None:
    found = ScoringModel(story_model, SPEC, tmp_path / "rows", compares=False, num_candidates=1)
    found.load(WITHIN_S)
    with pytest.raises(WorkerDied, match="was stopped before it answered"):
        found.steps(ids, 1, vocabulary, lambda _share: found.close())
    until(lambda: not _is_alive(found), "the process goes on")


def _is_alive(found: ScoringModel) -> bool:
    return found._program.is_alive


def row(*logits: float) -> npt.NDArray[np.float32]:
    return np.array(logits, np.float32)


def test_divergence_where_a_token_is_ruled_out() -> None:
    out = -math.inf
    assert kl_divergence(row(0, 1, out), row(0, 1, out)) == 0
    assert kl_divergence(row(0, 1, out), row(0, 1, 2)) == pytest.approx(
        math.log(1 + math.e + math.e**2) - math.log(1 + math.e)
    )
    assert kl_divergence(row(0, 1, 2), row(0, 1, out)) == math.inf
    assert kl_divergence(row(0, -2000), row(0, out)) == 0


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be written"):
        Rows(Path("/dev/full"), 2, is_read=False).write(row(0, 1))
