"""Fixtures of the embedding tests: pools of workers, models and folders, and the texts to embed."""

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
    """Pool with the installed model in float32; its batches are small, so that several jobs are needed."""
    with EmbeddingPool(EmbedSpec(backend="torch", workers=2, threads=1, tokens_per_batch=128)) as opened:
        yield opened


@pytest.fixture
def kept_home(home: Path, exported: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the exported models as the home of one test, because exporting takes seconds."""
    monkeypatch.setenv(PREFIX + "HOME", str(exported))
    return exported


@pytest.fixture(scope="session")
def minilm_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installed model as a 16-bit GGUF file."""
    return write_minilm(tmp_path_factory.mktemp("gguf") / "all-MiniLM-L6-v2.F16.gguf", "F16")
