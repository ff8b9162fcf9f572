"""What all tests share: a home folder of their own, the model that ships, a pool on it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.models.library import embedded_model
from engine.pool.pool import Pool
from engine.settings import PREFIX


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder; no setting of the person who runs the tests reaches them."""
    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv(PREFIX + "HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def story_model() -> Path:
    """The GGUF file that ships."""
    return embedded_model()


@pytest.fixture(scope="session")
def pool(story_model: Path) -> Iterator[Pool]:
    """One worker with four sequences of 512 tokens."""
    with Pool(story_model, parallel=4, n_ctx=512) as opened:
        yield opened
