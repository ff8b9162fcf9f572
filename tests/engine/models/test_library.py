"""Model library: the shipped model, the models of a folder, and those of several places."""

import os
import shutil
from pathlib import Path

import pytest

from engine.errors import ConfigError, ModelError
from engine.models import places
from engine.models.details import details
from engine.models.gguf import ModelFile
from engine.models.identity import model_hash
from engine.models.library import BrokenFile, embedded_model, find_model, list_models, read_library, shipped
from engine.models.places import Place
from engine.models.reading import read_model
from tests.engine.models.headers import KEYS, TENSORS, TEXT, gguf, key, tensor, text, u32, write


def reasons(found: list[ModelFile | BrokenFile]) -> dict[str, str]:
    return {one.path.name: one.reason for one in found if isinstance(one, BrokenFile)}


def split(number: int, tensors: list[bytes]) -> bytes:
    return gguf([*KEYS, u32("split.no", number), u32("split.count", 2)], tensors)


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
    write(tmp_path, gguf(), "._b.gguf")
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "none")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "turning.gguf").symlink_to(tmp_path / "turning.gguf")
    found = list_models(tmp_path)
    assert [entry.path for entry in found if isinstance(entry, ModelFile)] == [good, lowest]
    said = reasons(found)
    assert list(said) == ["a.GGUF", "dangling.gguf", "turning.gguf"]
    assert said["a.GGUF"].startswith(f"{broken}: is not a GGUF file")
    assert said["dangling.gguf"].endswith("dangling.gguf: there is no such file")
    assert "turning.gguf: cannot be read" in said["turning.gguf"]


def test_links_out_of_a_folder_are_refused_with_the_reason(tmp_path: Path) -> None:
    folder, outside = tmp_path / "models", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    secret = write(outside, gguf(), "secret.gguf")
    (folder / "link.gguf").symlink_to(secret)
    (folder / "more").symlink_to(outside)
    good = write(folder, gguf(), "z.gguf")
    (folder / "second name.gguf").symlink_to(good)
    write(folder, split(0, TENSORS), "m-00001-of-00002.gguf")
    part = write(outside, split(1, [tensor("output.weight", (64, 3), 8, 0)]), "part")
    (folder / "m-00002-of-00002.gguf").symlink_to(part)
    said = reasons(list_models(folder))
    assert list(said) == ["more", "link.gguf", "m-00001-of-00002.gguf"]
    for reason, target in zip(said.values(), (outside, secret, part), strict=True):
        assert f"is a link to {target}, outside its folder" in reason
    assert [entry.label for entry in read_library([Place("Here", folder)])][-1] == "second name.gguf, z.gguf"


def test_a_split_model_is_one_and_its_missing_parts_are_said(tmp_path: Path) -> None:
    first = write(tmp_path, split(0, TENSORS), "m-00001-of-00002.gguf")
    write(tmp_path, split(1, [tensor("output.weight", (64, 3), 8, 0)]), "lost-00002-of-00002.gguf")
    said = reasons(list_models(tmp_path))
    assert "m-00002-of-00002.gguf: there is no such file" in said["m-00001-of-00002.gguf"]
    assert "is missing, although lost-00002-of-00002.gguf exists" in said["lost-00001-of-00002.gguf"]
    os.rename(tmp_path / "lost-00002-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf")
    (model,) = list_models(tmp_path)
    assert isinstance(model, ModelFile)
    assert (model.path, model.parts, len(model.tensors)) == (first, 2, 3)
    assert model.size == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_the_search_is_bounded_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(8):
        (tmp_path / str(number)).mkdir()
        write(tmp_path / str(number), gguf(), "m.gguf")
    monkeypatch.setattr(places, "MAX_FILES", 5)
    found = list_models(tmp_path)
    assert [isinstance(entry, ModelFile) for entry in found] == [True] * 5 + [False]
    assert "holds more than 5 model files" in reasons(found)[tmp_path.name]
    monkeypatch.setattr(places, "MAX_FOLDERS", 4)
    assert "holds more than 4 folders" in reasons(list_models(tmp_path))[tmp_path.name]


def test_a_folder_that_does_not_exist_holds_no_models(tmp_path: Path) -> None:
    assert list_models(tmp_path / "none") == []


def test_each_model_is_listed_once_with_its_place_and_its_hash(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    path = write(first, gguf(), "a.gguf")
    os.link(path, second / "again.gguf")
    write(second, b"", "b.gguf")
    shares: list[float] = []
    searched = [Place("First", first), Place("Second", second, is_own=True)]
    model, broken = read_library(searched, shares.append)
    assert shares == [0.5, 1.0]
    assert (model.place.name, model.label, model.name, model.sha256) == ("First", "a.gguf", "Handmade", None)
    assert broken.to_dict() == {
        "name": "b.gguf",
        "place": "Second",
        "label": "b.gguf",
        "path": str(second / "b.gguf"),
        "reason": f"{second / 'b.gguf'}: is empty",
    }
    digest = model_hash(path)
    assert read_library(searched)[0].to_dict() == {
        "name": "Handmade",
        "place": "First",
        "label": "a.gguf",
        "path": str(path),
        "architecture": "llama",
        "size": path.stat().st_size,
        "num_files": 1,
        "quantisation": "Q8_0",
        "engine": "llama.cpp",
        "num_parameters": 256,
        "n_ctx_train": 128,
        "n_vocab": 3,
        "has_chat_template": True,
        "license": "mit",
        "is_synthetic": False,
        "sha256": digest,
    }
    write(first, gguf(), "a.gguf")
    assert read_library(searched)[0].sha256 is None


def test_names_with_odd_characters_can_be_shown(tmp_path: Path) -> None:
    odd = os.fsdecode(b"sm\xf6rg\xe5s")
    (tmp_path / odd).mkdir()
    unnamed = [k for k in KEYS if b"general.name" not in k]
    write(tmp_path / odd, gguf(unnamed), f"{odd}.gguf")
    write(tmp_path / odd, b"GG", "line\nbreak <b>.gguf")
    for _again in range(2):
        broken, model = sorted(read_library([Place("Here", tmp_path)]), key=lambda entry: entry.label)
        assert model.name == r"sm\xf6rg\xe5s"
        assert isinstance(broken.file, BrokenFile)
        assert broken.label == "sm\\xf6rg\\xe5s/line\nbreak <b>.gguf"
        for shown in (*model.to_dict().values(), *broken.to_dict().values()):
            assert str(shown).encode()


def test_a_model_is_found_by_path_name_and_label(tmp_path: Path) -> None:
    here = [Place("Here", tmp_path)]
    path = write(tmp_path, gguf(), "a.gguf")
    assert [find_model(name, here).path for name in (str(path), "Handmade", "a.gguf")] == [path] * 3
    with pytest.raises(ConfigError, match="no model 'Handmad' here; did you mean Handmade?"):
        find_model("Handmad", here)
    with pytest.raises(ConfigError, match="no model 'xyz' here; `models list` shows"):
        find_model("xyz", here)
    write(tmp_path, gguf(), "b.gguf")
    with pytest.raises(ConfigError, match=r"2 models are called 'Handmade': .*a\.gguf, .*b\.gguf"):
        find_model("Handmade", here)
    write(tmp_path, b"", "c.gguf")
    with pytest.raises(ModelError, match=r"c\.gguf: is empty"):
        find_model("c.gguf", here)


def test_details_of_the_embedded_model() -> None:
    model = read_model(embedded_model())
    said = details(model)
    assert said["weights_bytes"] == sum(group["num_bytes"] for group in said["tensors_by_type"])
    assert said["num_parameters"] == sum(group["num_values"] for group in said["tensors_by_size"])
    assert said["metadata"]["general.architecture"] == said["architecture"] == "llama"


def test_details_are_json_whatever_the_header_holds(tmp_path: Path) -> None:
    import json
    import struct

    keys = [*KEYS, key("odd", 6, struct.pack("<f", float("inf"))), key("text", TEXT, text(b"\xff\0<b>"))]
    said = details(read_model(write(tmp_path, gguf(keys))))
    assert json.loads(json.dumps(said, allow_nan=False))["metadata"]["odd"] == "inf"


def test_a_model_that_goes_away_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    write(folder, gguf(), "a.gguf")
    assert len(list_models(folder)) == 1
    shutil.rmtree(folder)
    assert list_models(folder) == []
