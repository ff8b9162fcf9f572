"""The shipped model and the list of a folder."""

from pathlib import Path

import pytest

from engine.models import library
from engine.models.gguf import ModelFile, read_model
from engine.models.library import BrokenFile, embedded_model, list_models, shipped
from tests.engine.models.headers import gguf, write


def test_the_embedded_model_is_there_and_whole() -> None:
    model = read_model(embedded_model())
    assert embedded_model() == shipped("demo", "story.gguf")
    assert (model.architecture, model.quantisation, model.n_vocab) == ("llama", "Q8_0", 4096)
    assert not model.is_synthetic


def test_a_folder_is_listed_by_path_with_its_broken_files(tmp_path: Path) -> None:
    deep = tmp_path / "1" / "2" / "3"
    (deep / "4").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    good, broken = write(tmp_path, gguf(), "b.gguf"), write(tmp_path, b"GG", "a.GGUF")
    lowest = write(deep, gguf())
    for folder, name in ((deep / "4", "m.gguf"), (tmp_path / ".hidden", "m.gguf"), (tmp_path, "m.bin")):
        write(folder, gguf(), name)
    write(tmp_path, gguf(), "x-00002-of-00003.gguf")
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "none")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = list_models(tmp_path)
    assert [entry.path for entry in found] == [lowest, broken, good, tmp_path / "dangling.gguf"]
    assert [isinstance(entry, ModelFile) for entry in found] == [True, False, True, False]
    assert [entry.reason.split(": ")[1][:11] for entry in found if isinstance(entry, BrokenFile)] == [
        "is not a GG",
        "there is no",
    ]


def test_the_scan_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(8):
        write(tmp_path, gguf(), f"{number}.gguf")
    monkeypatch.setattr(library, "MAX_FILES", 5)
    assert len(list_models(tmp_path)) == 5


def test_a_folder_that_does_not_exist_holds_no_models(tmp_path: Path) -> None:
    assert list_models(tmp_path / "none") == []
