"""Fixtures of the model file tests: small models written once, and a local hub with a small repository."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.models.catalogue import choose
from engine.models.download import Download
from engine.models.gguf import ModelFile
from engine.models.hub import read_repository
from engine.models.reading import read_model
from engine.models.synthetic import write_synthetic
from tests.engine.models.hub_server import Hub, serving, without_login

NAME = "somebody/little-GGUF"
FILE = "little.Q4_K_M.gguf"
DATA = random.Random(1).randbytes(300_000)
NO_WAIT = (0.0, 0.0)

Get = Callable[[], Download]


@pytest.fixture(scope="session", params=["tiny", "tiny-tied"])
def synthetic(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("synthetic") / f"{request.param}.gguf"
    write_synthetic(request.param, path)
    return path


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    """A small model of 16-bit floats."""
    path = tmp_path_factory.mktemp("source") / "tiny-F16.gguf"
    write_synthetic("tiny", path, "F16")
    return read_model(path)


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path where huggingface_hub looks for its token; the file does not exist."""
    path = tmp_path / "login" / "token"
    path.parent.mkdir()
    without_login(monkeypatch, path)
    return path


@pytest.fixture
def hub(login: Path) -> Iterator[Hub]:
    """Local hub with a small repository."""
    with serving() as served:
        served.repositories[NAME] = {FILE: DATA, "README.md": b"# Little"}
        yield served


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def get(hub: Hub, folder: Path) -> Get:
    """Function that starts a download of the small model, as the hub lists it at that time."""

    def started() -> Download:
        repository = read_repository(NAME, hub.endpoint)
        return Download(repository, choose(repository).files, folder, waits_s=NO_WAIT).start()

    return started


def partials(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.partial"))
