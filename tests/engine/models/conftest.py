"""Synthetic models of the two small shapes of the llama family, written once for all tests here."""

from pathlib import Path

import pytest

from engine.models.synthetic import write_synthetic


@pytest.fixture(scope="session", params=["tiny", "tiny-tied"])
def synthetic(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("synthetic") / f"{request.param}.gguf"
    write_synthetic(request.param, path)
    return path
