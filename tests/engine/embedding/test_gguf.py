"""GGUF embedding models in llama.cpp: pooled as their metadata says, close to the same model in PyTorch."""

from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.calls import embed
from engine.embedding.agreement import agreement
from engine.embedding.models import find_model
from engine.embedding.pool import EmbeddingPool
from engine.embedding.specs import EmbedSpec
from engine.errors import ConfigError, ModelError
from engine.step_parts import Floats
from tests.engine.embedding.conftest import TEXTS
from tests.minilm_gguf import write_minilm

LATIN = [0, 1, 2, *range(8, len(TEXTS))]
"""Indices of the texts for which llama.cpp and the original tokenizer give the same ids. The two split characters that
the vocabulary lacks into different unknown tokens."""


@pytest.fixture(scope="module")
def llama(minilm_gguf: Path) -> Iterator[EmbeddingPool]:
    with EmbeddingPool(EmbedSpec(model=str(minilm_gguf), workers=2, threads=1, tokens_per_batch=128)) as opened:
        yield opened


def test_vectors_are_those_of_the_folder(llama: EmbeddingPool, embedder: EmbeddingPool) -> None:
    ours, theirs = llama.embed(TEXTS), embedder.embed(TEXTS)
    assert llama.backend == "llama"
    assert ours.shape == theirs.shape
    assert agreement(ours[LATIN], theirs[LATIN]).worst_cosine > 0.999
    assert np.isfinite(ours).all()


def test_the_order_is_kept_and_neighbours_do_not_matter(llama: EmbeddingPool) -> None:
    vectors = llama.embed(TEXTS)
    assert llama.embed(TEXTS[::-1])[::-1] == pytest.approx(vectors, abs=2e-3)
    assert np.concatenate([llama.embed([text]) for text in TEXTS[:8]]) == pytest.approx(vectors[:8], abs=2e-3)


def test_a_text_longer_than_a_batch_is_one_and_what_is_too_long_is_cut(llama: EmbeddingPool) -> None:
    assert llama.max_tokens == 512
    done = llama.submit(["word " * 510, "word " * 511, "word " * 5_000, "word"]).result(60)
    assert done.is_cut.tolist() == [False, True, True, False]
    assert done.num_tokens == 3 * 512 + 3
    assert done.vectors[1] == pytest.approx(done.vectors[0], abs=2e-3)


def test_token_ids_are_taken_as_they_are(llama: EmbeddingPool) -> None:
    """101 and 102 begin and end a text."""
    done = llama.submit([[101, 2773, 102], [101] * 600]).result(60)
    assert done.vectors[0] == pytest.approx(llama.embed(["word"])[0], abs=2e-3)
    assert (done.is_cut.tolist(), done.num_tokens) == ([False, True], 3 + 512)


@pytest.mark.parametrize(
    ("texts", "counted"),
    [(["word " * 5_000], "1 of 1 texts"), (["word", "word " * 511, "word " * 5_000], "2 of 3 texts")],
)
def test_both_forms_warn_where_they_cut_at_the_line_of_their_caller(
    minilm_gguf: Path, llama: EmbeddingPool, texts: list[str], counted: str
) -> None:
    calls: tuple[Callable[[], Floats], ...] = (lambda: embed(texts, model=minilm_gguf), lambda: llama.embed(texts))
    for call in calls:
        with pytest.warns(UserWarning, match=f"{counted} exceed the 512 tokens") as caught:
            assert call().shape == (len(texts), 384)
        assert [Path(warning.filename) for warning in caught] == [Path(__file__)]


def test_the_one_line_form_of_a_single_text_warns_too(minilm_gguf: Path) -> None:
    with pytest.warns(UserWarning, match="1 of 1 texts exceed"):
        assert embed("word " * 5_000, model=minilm_gguf).shape == (384,)


def test_the_one_line_form_is_silent_where_nothing_is_cut(minilm_gguf: Path) -> None:
    assert embed(["word " * 510], model=minilm_gguf).shape == (1, 384)  # a warning would be an error here


def test_pooling_is_as_the_metadata_says(tmp_path: Path, llama: EmbeddingPool) -> None:
    path = write_minilm(tmp_path / "cls.gguf", "F16", gguf.PoolingType.CLS)
    with EmbeddingPool(EmbedSpec(model=str(path))) as pool:
        by_first = pool.embed(TEXTS[:3])
    assert np.abs(by_first - llama.embed(TEXTS[:3])).max() > 0.01


@pytest.mark.parametrize("pooling", [None, gguf.PoolingType.NONE, gguf.PoolingType.RANK])
def test_without_a_pooling_it_is_no_embedding_model(tmp_path: Path, pooling: gguf.PoolingType | None) -> None:
    path = write_minilm(tmp_path / "bare.gguf", "F16", pooling)
    with pytest.raises(ModelError, match="not an embedding model"):
        EmbeddingPool(EmbedSpec(model=str(path)))


def test_a_language_model_is_no_embedding_model(story_model: Path) -> None:
    with pytest.raises(ModelError, match="not an embedding model"):
        EmbeddingPool(EmbedSpec(model=str(story_model)))


def test_a_file_that_is_none_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\3\0\0\0")
    with pytest.raises(ModelError, match=r"broken\.gguf"):
        EmbeddingPool(EmbedSpec(model=str(tmp_path / "broken.gguf")))


def test_a_backend_that_reads_no_such_file_is_refused(minilm_gguf: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read GGUF"):
        EmbeddingPool(EmbedSpec(model=str(minilm_gguf), backend="torch"))
    with pytest.raises(ConfigError, match="reads only GGUF files"):
        EmbeddingPool(EmbedSpec(backend="llama"))


def test_its_hash_is_that_of_the_file_and_its_prefixes_are_known(minilm_gguf: Path, home: Path) -> None:
    model = find_model(str(minilm_gguf))
    assert (model.name, model.is_gguf, model.query_prefix) == ("all-MiniLM-L6-v2", True, "")
    placed = home / "models" / "nomic-embed-text-v1.5.Q8_0.gguf"
    placed.parent.mkdir()
    placed.write_bytes(minilm_gguf.read_bytes())
    assert find_model(str(placed)).content_hash() == model.content_hash()
    assert find_model(str(placed)).query_prefix == "search_query: "
    assert find_model(placed.name).path == placed


def test_of_a_very_long_text_no_more_is_tokenised_than_counts(llama: EmbeddingPool) -> None:
    text = "é " * 4_000
    done = llama.submit([text, text * 250]).result(120)
    assert done.is_cut.tolist() == [True, True]
    assert done.vectors[1] == pytest.approx(done.vectors[0], abs=2e-3)
