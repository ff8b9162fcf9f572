"""One pool of two workers for all tests of embeddings, and the texts they embed."""

from collections.abc import Iterator

import pytest

from engine.embedding.pool import EmbeddingPool
from engine.embedding.specs import EmbedSpec

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
    with EmbeddingPool(EmbedSpec(workers=2, threads=1, tokens_per_batch=128)) as opened:
        yield opened
