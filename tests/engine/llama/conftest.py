"""Shipped model in this process: the reference for the engine's figures."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.llama.context import Context
from engine.llama.model import Model
from engine.specs import PoolSpec

SPEC = PoolSpec(parallel=4, n_ctx=512)


@pytest.fixture(scope="session")
def model(story_model: Path) -> Iterator[Model]:
    loaded = Model(str(story_model), SPEC)
    yield loaded
    loaded.close()


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    made = Context(model, SPEC, threads=2, threads_batch=2)
    yield made
    made.close()
