"""Embedding models by folder and name, and the prefixes they need for queries and documents."""

import json
from pathlib import Path

import pytest

from engine.embedding.models import E5_TASK, EMBEDDED_NAME, find_model
from engine.errors import ModelError


def folder_of(path: Path, prompts: object = None) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    if prompts is not None:
        (path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    return path


@pytest.mark.parametrize("name", ["", EMBEDDED_NAME, "sentence-transformers/all-MiniLM-L6-v2"])
def test_the_installed_model_needs_no_path(name: str) -> None:
    model = find_model(name)
    assert model.name == EMBEDDED_NAME
    assert (model.path / "model.safetensors").is_file()
    assert model.prefix(True) == model.prefix(False) == ""


@pytest.mark.parametrize(
    ("name", "query", "document"),
    [
        ("bge-small-en-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        ("multilingual-e5-large-instruct", f"Instruct: {E5_TASK}\nQuery: ", ""),
        ("multilingual-e5-small", "query: ", "passage: "),
        ("e5-base-v2", "query: ", "passage: "),
        ("nomic-embed-text-v1.5", "search_query: ", "search_document: "),
        ("gte-small", "", ""),
    ],
)
def test_what_a_model_wants_is_known_by_its_name(tmp_path: Path, name: str, query: str, document: str) -> None:
    model = find_model(str(folder_of(tmp_path / name)))
    assert (model.prefix(True), model.prefix(False)) == (query, document)


def test_what_the_folder_says_comes_first(tmp_path: Path) -> None:
    model = find_model(str(folder_of(tmp_path / "bge-small-en-v1.5", {"query": "q: ", "passage": "p: "})))
    assert (model.prefix(True), model.prefix(False)) == ("q: ", "p: ")


def test_empty_prompts_say_nothing(tmp_path: Path) -> None:
    model = find_model(str(folder_of(tmp_path / "multilingual-e5-base", {"query": "", "document": ""})))
    assert model.query_prefix == "query: "


def test_a_name_is_found_in_the_models_folder(home: Path) -> None:
    placed = folder_of(home / "models" / "BAAI" / "bge-base-en-v1.5")
    assert find_model("BAAI/bge-base-en-v1.5").path == placed


def test_a_name_is_found_in_the_cache_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    cached = tmp_path / "models--intfloat--multilingual-e5-small"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("abc123")
    folder_of(cached / "snapshots" / "abc123")
    model = find_model("intfloat/multilingual-e5-small")
    assert (model.name, model.query_prefix) == ("intfloat/multilingual-e5-small", "query: ")


@pytest.mark.parametrize("name", ["BAAI/bge-m3", "../secrets/x", "no/such/model", "/nowhere/at/all"])
def test_a_model_that_is_not_here_is_said(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="is not on this machine"):
        find_model(name)


@pytest.mark.parametrize("name", ["~no-such-user/model", "~\0", "a\0b"])
def test_a_name_that_cannot_be_a_path_is_said_with_advice(name: str) -> None:
    with pytest.raises(ModelError, match=r"is not a valid path \(.+\): give a folder or the name of a model$"):
        find_model(name)


def test_a_folder_without_a_model_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"modules\.json"):
        find_model(str(tmp_path))


def test_a_damaged_configuration_is_said(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    (folder / "config_sentence_transformers.json").write_text('{"prompts": ')
    with pytest.raises(ModelError, match="damaged"):
        find_model(str(folder))


def test_a_configuration_without_end_is_not_read(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    with (folder / "config_sentence_transformers.json").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ModelError, match="too large for a configuration file"):
        find_model(str(folder))


@pytest.mark.parametrize(
    "content", [b"", b"no weights at all", bytes(8), (1 << 62).to_bytes(8, "little") + b"{}", b"\2" + bytes(7) + b"[]"]
)
def test_weights_that_are_none_are_said_at_once(tmp_path: Path, content: bytes) -> None:
    folder = folder_of(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="download the model again"):
        find_model(str(folder))


def test_weights_that_are_cut_off_are_said_at_once(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    weights = find_model("").path / "model.safetensors"
    with weights.open("rb") as whole:
        (folder / "model.safetensors").write_bytes(whole.read(1 << 20))
    with pytest.raises(ModelError, match="does not have the length"):
        find_model(str(folder))
