"""Pools of workers, models and places that the tests of embeddings share, and the texts they embed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.embedding.pool import EmbeddingPool
from engine.embedding.specs import EmbedSpec
from engine.settings import PREFIX
from tests.minilm_gguf import write_minilm

TEXTS = [
    "The cat sleeps on the sofa.",
    "A kitten is dozing on the couch.",
    "The central bank raised interest rates.",
    "",
    "Кошка спит на диване.",
    "猫がソファで寝ている。",
    "القطة نائمة على الأريكة",
    "🐈 zzz",
    *("word " * number for number in range(1, 60)),
]


@pytest.fixture(scope="session")
def embedder() -> Iterator[EmbeddingPool]:
    """The embedded model in float32; batches small enough that jobs are several."""
    with EmbeddingPool(EmbedSpec(backend="torch", workers=2, threads=1, tokens_per_batch=128)) as opened:
        yield opened


@pytest.fixture
def kept_home(home: Path, exported: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the exported forms as the home of one test, as making them takes seconds."""
    monkeypatch.setenv(PREFIX + "HOME", str(exported))
    return exported


@pytest.fixture(scope="session")
def minilm_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model as a GGUF file in 16 bits."""
    return write_minilm(tmp_path_factory.mktemp("gguf") / "all-MiniLM-L6-v2.F16.gguf", "F16")
