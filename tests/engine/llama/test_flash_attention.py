"""Flash attention as llama.cpp was compiled for this processor, compared with attention without it."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from engine.llama.context import Chunk, Context
from engine.llama.model import Model
from engine.models.shapes import Shape
from engine.models.synthetic import write_synthetic
from engine.specs import PoolSpec

LENGTH = 2048
ROUNDS = 8
HEADS_OF_64 = Shape(
    architecture="llama", n_vocab=512, n_ctx_train=LENGTH, n_embd=512, n_layer=4, n_head=8, n_head_kv=2, n_ff=512
)


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Model]:
    """Model that spends its time in attention as soon as a text is long."""
    path = tmp_path / "narrow.gguf"
    write_synthetic(HEADS_OF_64, path, "Q8_0")
    with closing(Model(str(path), PoolSpec())) as model:
        yield model


def seconds_to_decode(context: Context, ids: list[int], position: int) -> float:
    context.fill([Chunk(0, ids, position, 1)])
    began = time.perf_counter()
    assert context.decode() == 0
    return time.perf_counter() - began


@pytest.mark.alone
def test_heads_of_64_are_not_three_times_as_slow_with_flash_attention(narrow: Model) -> None:
    with (
        closing(Context(narrow, PoolSpec(parallel=1, n_ctx=LENGTH, flash_attn=True), 1, 2)) as flash,
        closing(Context(narrow, PoolSpec(parallel=1, n_ctx=LENGTH, flash_attn=False), 1, 2)) as plain,
    ):
        depth = LENGTH - ROUNDS
        for context in (flash, plain):
            seconds_to_decode(context, [5] * depth, 0)
        taken = [
            (seconds_to_decode(flash, [5], position), seconds_to_decode(plain, [5], position))
            for position in range(depth, LENGTH)
        ]
    with_it, without = map(min, zip(*taken, strict=True))
    assert with_it < 3 * without
