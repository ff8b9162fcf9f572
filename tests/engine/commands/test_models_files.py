"""`models get` and `models quantize`: what they print and save, and their errors."""

import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.__main__ import ERROR, main
from engine.commands import watched
from engine.errors import DownloadError, JobTimeout
from engine.models.catalogue import read_catalogue
from engine.models.download import Download
from engine.models.hub import read_repository
from engine.models.reading import read_model
from engine.models.synthetic import write_synthetic
from engine.progress_line import ProgressLine
from tests.engine.models.hub_server import Hub, by_default, serving, without_login

NAME, FILE = "somebody/little-GGUF", "little.Q4_K_M.gguf"
DATA = random.Random(3).randbytes(300_000)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Local hub that HF_ENDPOINT names, without a login."""
    without_login(monkeypatch, tmp_path / "no-token")
    with serving() as served:
        by_default(monkeypatch, served)
        served.repositories[NAME] = {FILE: DATA, "little.Q8_0.gguf": DATA * 2}
        yield served


@pytest.fixture
def source(home: Path) -> Path:
    path = home / "models" / "tiny-F16.gguf"
    path.parent.mkdir(parents=True)
    write_synthetic("tiny", path, "F16")
    return path


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict:  # type: ignore[type-arg]
    assert main(["models", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_without_a_name_the_catalogue_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "get")
    assert [model["name"] for model in found["models"]] == [entry.name for entry in read_catalogue().entries]
    assert all(model["needed_bytes"] > 1e9 * model["size_gb"] for model in found["models"])
    assert main(["models", "get"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(found["models"])


def test_a_repository_is_listed(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "get", NAME, "--list")
    assert (found["repository"], found["license"]) == (NAME, "mit")
    assert [(one["name"], one["bytes"]) for one in found["choices"]] == [
        (FILE, len(DATA)), ("little.Q8_0.gguf", 2 * len(DATA)),
    ]  # fmt: skip


def test_a_model_is_fetched_into_the_folder_of_models(
    hub: Hub, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = printed(capsys, "get", NAME, "Q4_K_M")
    assert found["files"] == [str(home / "models" / NAME / FILE)]
    assert Path(found["files"][0]).read_bytes() == DATA
    other = printed(capsys, "get", NAME, "q8_0", "--folder", str(tmp_path / "other"))
    assert other["files"] == [str(tmp_path / "other" / NAME / "little.Q8_0.gguf")]


def test_which_file_is_asked_where_there_are_several(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "get", NAME]) == ERROR
    assert "Choose one of" in capsys.readouterr().err
    assert main(["models", "get", "no-such-model"]) == ERROR
    assert "not in the catalogue" in capsys.readouterr().err


def test_ctrl_c_stops_the_work_and_says_what_stays(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = read_repository(NAME)
    download = Download(repository, repository.files[:1], tmp_path)
    hub.pace.clear()

    def interrupted(*_args: object, **_options: object) -> None:
        threading.Timer(0.2, hub.pace.set).start()
        raise KeyboardInterrupt

    monkeypatch.setattr(ProgressLine, "show", interrupted)
    with pytest.raises(KeyboardInterrupt):
        watched.watch(download)
    with pytest.raises(DownloadError, match="stopped"):
        download.result(60)
    assert "The downloaded part is saved" in capsys.readouterr().err


def test_an_interrupt_in_a_wait_is_not_the_end_of_the_work(hub: Hub, tmp_path: Path) -> None:
    repository = read_repository(NAME)
    download = Download(repository, repository.files[:1], tmp_path)
    hub.pace.clear()
    download.start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            download.result(60)
        with pytest.raises(JobTimeout):
            download.result(0)
    finally:
        signal.signal(signal.SIGINT, before)
        hub.pace.set()
    assert download.result(60)


def test_the_types_of_a_model_are_listed_with_their_sizes(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    types = {one["type"]: one for one in printed(capsys, "quantize", str(source))["types"]}
    assert types["Q4_0"]["bytes"] < types["Q8_0"]["bytes"] < source.stat().st_size
    assert "importance matrix" in types["IQ2_XXS"]["refusal"]


def test_a_quantisation_is_made_beside_its_model_or_where_it_is_said(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = printed(capsys, "quantize", str(source), "q8_0")
    assert found["path"] == str(source.with_name("tiny-Q8_0.gguf"))
    made = read_model(found["path"])
    assert (made.quantisation, made.size, source.stat().st_size) == ("Q8_0", found["bytes"], found["source_bytes"])
    assert printed(capsys, "quantize", str(source), "Q4_0", "--out", str(tmp_path / "x.gguf"))["quantisation"] == "Q4_0"


def test_a_model_that_ships_gets_no_neighbour(
    home: Path, story_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "quantize", str(story_model), "Q4_0"]) == ERROR
    assert "or allow quantising again (--again on the command line)" in capsys.readouterr().err
    found = printed(capsys, "quantize", str(story_model), "Q4_0", "--again")
    assert found["path"] == str(home / "models" / "story-Q4_0.gguf")


@pytest.mark.parametrize(
    ("type_name", "out", "said"),
    [
        ("Q99", "x.gguf", "must be one of"),
        ("F16", "x.gguf", "already has this type"),
        ("Q8_0", "x.bin", "must end in .gguf"),
        ("Q8_0", "no/x.gguf", "there is no such folder"),
        ("Q8_0", "models/tiny-F16.gguf", "is the source model itself"),
    ],
)
def test_what_cannot_be_made_is_said(
    source: Path, home: Path, type_name: str, out: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = source.read_bytes()
    assert main(["models", "quantize", str(source), type_name, "--out", str(home / out)]) == ERROR
    assert said in capsys.readouterr().err
    assert source.read_bytes() == before
    assert sorted(path.name for path in source.parent.iterdir()) == [source.name]
