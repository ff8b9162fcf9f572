"""Errors for what users enter instead of a model file."""

from pathlib import Path

import pytest

from engine.errors import ModelError
from engine.pool.pool import Pool


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-0.5B-Instruct-GGUF", "a/b", "TheBloke/x_y.z-1"])
def test_a_repositorys_name_is_refused_with_how_to_fetch_it(name: str) -> None:
    with pytest.raises(ModelError, match=f"python -m engine models get {name};"):
        Pool(name)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://huggingface.co/a/b", "a/b"),
        ("https://huggingface.co/a/b-GGUF/resolve/main/b.gguf", "a/b-GGUF"),
        ("hf://a/b", "a/b"),
        ("HTTP://hf.co/a/b", "a/b"),
        ("s3://bucket", "OWNER/NAME"),
        ("file:///x.gguf", "OWNER/NAME"),
    ],
)
def test_an_address_is_refused_with_how_to_fetch_it(address: str, name: str) -> None:
    with pytest.raises(ModelError, match=f"is a URL, not a file.*models get {name};"):
        Pool(address)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "It has no GGUF file"),
        (("b.gguf", "A.GGUF"), "It contains A.GGUF, b.gguf."),
        (tuple(f"{number}.gguf" for number in range(7)), "and 2 more"),
        (("model.safetensors",), "another format"),
        (("pytorch_model.bin",), "convert_hf_to_gguf"),
    ],
)
def test_a_folder_is_refused_with_what_is_in_it(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(ModelError, match="give the GGUF file itself") as raised:
        Pool(tmp_path)
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["x.bin", "x.PT", "x.onnx"])
def test_weights_in_another_form_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    for path in (tmp_path / name, tmp_path / "gone" / name):
        with pytest.raises(ModelError, match="neither a GGUF file nor a folder of safetensors"):
            Pool(path)


def test_one_file_of_a_folder_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").touch()
    with pytest.raises(ModelError, match="give the folder that it lies in"):
        Pool(tmp_path / "x.safetensors")


@pytest.mark.parametrize("name", ["x.gguf", "a/b.gguf", "a/b/c", "x"])
def test_other_names_are_files_that_are_not_there(name: str) -> None:
    with pytest.raises(ModelError, match="there is no such file"):
        Pool(name)
