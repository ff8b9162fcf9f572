"""Model hash: correct, computed once, and computed again when the file changes."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from engine.errors import ModelError
from engine.models.identity import model_hash


def test_it_is_the_sha256_and_is_remembered(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"one")
    assert model_hash(path, tmp_path) == hashlib.sha256(b"one").hexdigest()
    store = tmp_path / "models" / "hashes.json"
    kept = json.loads(store.read_text())
    kept[str(path)][-1] = "remembered"
    store.write_text(json.dumps(kept))
    assert model_hash(path, tmp_path) == "remembered"
    os.utime(path, ns=(0, 1))
    assert model_hash(path, tmp_path) == hashlib.sha256(b"one").hexdigest()
    path.write_bytes(b"another")
    assert model_hash(path, tmp_path) == hashlib.sha256(b"another").hexdigest()


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"%s": 5}', b'{"%s": []}'])
def test_a_damaged_memory_is_replaced(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"one")
    store = tmp_path / "models" / "hashes.json"
    store.parent.mkdir()
    store.write_bytes(damage.replace(b"%s", str(path).encode()))
    assert model_hash(path, tmp_path) == hashlib.sha256(b"one").hexdigest()
    assert str(path) in json.loads(store.read_text())
    assert [entry.name for entry in store.parent.iterdir()] == ["hashes.json"]


def test_a_folder_that_cannot_be_written_costs_only_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"one")
    assert model_hash(path, path) == hashlib.sha256(b"one").hexdigest()


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.gguf: cannot be read"):
        model_hash(tmp_path / "none.gguf", tmp_path)
