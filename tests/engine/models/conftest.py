"""What tests of model files share: small models written once, and a hub of our own with a little repository."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.models.catalogue import choose
from engine.models.download import Download
from engine.models.gguf import ModelFile, read_model
from engine.models.hub import read_repository
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
    """Where huggingface_hub looks for its token: a file that is not there."""
    path = tmp_path / "login" / "token"
    path.parent.mkdir()
    without_login(monkeypatch, path)
    return path


@pytest.fixture
def hub(login: Path) -> Iterator[Hub]:
    """A hub with a little repository."""
    with serving() as served:
        served.repositories[NAME] = {FILE: DATA, "README.md": b"# Little"}
        yield served


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def get(hub: Hub, folder: Path) -> Get:
    """A download of the little model, as the hub lists it now; it has begun."""

    def started() -> Download:
        repository = read_repository(NAME, hub.endpoint)
        return Download(repository, choose(repository).files, folder, waits_s=NO_WAIT).start()

    return started


def partials(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.partial"))
