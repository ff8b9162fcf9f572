"""Uploaded model files: whole ones get their name in the folder; broken, large or ill-named ones leave nothing."""

import io
import os
from pathlib import Path

import pytest

from engine.errors import ConfigError, ModelError
from engine.models import embedded_model, read_model, uploaded
from engine.models.uploaded import take_upload, upload_name


@pytest.fixture(scope="module")
def story() -> bytes:
    return embedded_model().read_bytes()


def test_a_whole_file_is_there_under_its_name(tmp_path: Path, story: bytes) -> None:
    path = take_upload("My model.gguf", io.BytesIO(story), tmp_path)
    assert path == tmp_path / "My model.gguf"
    assert path.read_bytes() == story
    assert read_model(path).n_vocab == read_model(embedded_model()).n_vocab
    assert os.listdir(tmp_path) == ["My model.gguf"]


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("mistral-7b.Q4_K_M.gguf", "mistral-7b.Q4_K_M.gguf"),
        ("../../etc/x.gguf", "x.gguf"),
        ("C:\\models\\x.GGUF", "x.gguf"),
        (".hidden.gguf", "hidden.gguf"),
        ("a\n\u202eb<c>\0.gguf", "a__b_c__.gguf"),
        ("naïve 模型.gguf", "naïve 模型.gguf"),
        ("\udcff.x.gguf", "_.x.gguf"),
        ("é" * 400 + ".gguf", "é" * 100 + ".gguf"),
    ],
)
def test_names_keep_no_folder_and_nothing_unusual(tmp_path: Path, story: bytes, name: str, kept: str) -> None:
    assert upload_name(name) == kept
    assert take_upload(name, io.BytesIO(story), tmp_path) == tmp_path / kept
    assert os.listdir(tmp_path) == [kept]


@pytest.mark.parametrize("name", ["", "x", ".gguf", "...gguf", "x.gguf.exe", "x/", "../..", "m-00001-of-00003.gguf"])
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="GGUF|split model"):
        take_upload(name, io.BytesIO(b""), tmp_path)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("broken", ["empty", "other", "cut", "header"])
def test_broken_files_are_refused_by_name_and_leave_nothing(tmp_path: Path, story: bytes, broken: str) -> None:
    content = {"empty": b"", "other": b"PK\x03\x04" + story[4:], "cut": story[:-1000], "header": story[:500]}[broken]
    with pytest.raises(ModelError, match=r"^x\.gguf: ") as caught:
        take_upload("x.gguf", io.BytesIO(content), tmp_path)
    assert ".partial" not in str(caught.value) and str(tmp_path) not in str(caught.value)
    assert not os.listdir(tmp_path)


def test_nothing_that_is_there_is_replaced(tmp_path: Path, story: bytes) -> None:
    (tmp_path / "mine.gguf").write_text("mine")
    (tmp_path / "link.gguf").symlink_to(tmp_path / "nowhere")
    for name in ("mine.gguf", "link.gguf"):
        with pytest.raises(ConfigError, match="already exists"):
            take_upload(name, io.BytesIO(story), tmp_path)
    assert (tmp_path / "mine.gguf").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["link.gguf", "mine.gguf"]


def test_a_file_that_comes_meanwhile_is_not_replaced(tmp_path: Path, story: bytes) -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            (tmp_path / "x.gguf").write_text("other")
            return super().read(size)

    with pytest.raises(ConfigError, match="already exists"):
        take_upload("x.gguf", Slow(story), tmp_path)
    assert (tmp_path / "x.gguf").read_text() == "other"
    assert os.listdir(tmp_path) == ["x.gguf"]


def test_a_link_in_the_place_of_the_partial_file_is_not_followed(tmp_path: Path, story: bytes) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    (tmp_path / ".x.gguf.partial").symlink_to(other)
    with pytest.raises(ModelError, match="cannot be written"):
        take_upload("x.gguf", io.BytesIO(story), tmp_path)
    assert other.read_text() == "mine"


def test_a_file_that_is_too_large_ends_early(tmp_path: Path, story: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploaded, "MOST_BYTES", 1 << 20)
    file = io.BytesIO(story)
    with pytest.raises(ModelError, match=r"x\.gguf has more than the 1\.05 MB that can be uploaded"):
        take_upload("x.gguf", file, tmp_path)
    assert file.tell() <= 3 << 20
    assert not os.listdir(tmp_path)


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, story: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploaded, "SPARE_BYTES", 1 << 62)
    with pytest.raises(ModelError, match="too little room"):
        take_upload("x.gguf", io.BytesIO(story), tmp_path)
    assert not os.listdir(tmp_path)
