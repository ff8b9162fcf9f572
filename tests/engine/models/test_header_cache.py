"""Header cache: returns what the file says, rereads it when it changes, and is never an obstacle."""

import os
from pathlib import Path

import pytest

from engine.errors import ModelError
from engine.models import header_cache
from engine.models.gguf import ModelFile
from engine.models.header_cache import HeaderCache
from engine.models.reading import read_model
from tests.engine.models.headers import KEYS, TENSORS, TEXT, gguf, key, tensor, text, u32, write


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Paths of the files whose header is actually read."""
    paths: list[Path] = []

    def noted(path: Path) -> ModelFile:
        paths.append(path)
        return read_model(path)

    monkeypatch.setattr(header_cache, "read_model", noted)
    return paths


def test_a_second_process_reads_no_header(story_model: Path, tmp_path: Path, reads: list[Path]) -> None:
    store = tmp_path / "models" / "headers.msgpack"
    first = HeaderCache(store)
    models = [first.read(path) for path in (story_model, write(tmp_path, gguf()))]
    first.save()
    second = HeaderCache(store)
    assert [second.read(model.path) for model in models] == models == [read_model(model.path) for model in models]
    assert reads == [model.path for model in models]
    assert [path.name for path in store.parent.iterdir()] == [store.name]


def test_a_changed_file_is_read_again(tmp_path: Path, reads: list[Path]) -> None:
    path = write(tmp_path, gguf())
    kept = HeaderCache(tmp_path / "store")
    assert kept.read(path).name == "Handmade"
    renamed = [key("general.name", TEXT, text("Another1")) if b"general.name" in k else k for k in KEYS]
    write(tmp_path, gguf(renamed))
    os.utime(path, ns=(0, 1))
    assert kept.read(path).name == "Another1"
    path.write_bytes(b"GG")
    with pytest.raises(ModelError, match="not a GGUF file"):
        kept.read(path)
    path.unlink()
    with pytest.raises(ModelError, match="no such file"):
        kept.read(path)
    assert len(reads) == 4


def test_a_part_that_goes_away_is_noticed(tmp_path: Path) -> None:
    def part(number: int, tensors: list[bytes]) -> bytes:
        return gguf([*KEYS, u32("split.no", number), u32("split.count", 2)], tensors)

    first = write(tmp_path, part(0, TENSORS), "m-00001-of-00002.gguf")
    second = write(tmp_path, part(1, [tensor("output.weight", (64, 3), 8, 0)]), "m-00002-of-00002.gguf")
    kept = HeaderCache(tmp_path / "store")
    assert kept.read(first).parts == kept.read(first).parts == 2
    second.unlink()
    with pytest.raises(ModelError, match=r"m-00002-of-00002\.gguf: there is no such file"):
        kept.read(first)


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x93\1\2\3", b"\x82\xa4form\x91\xa1x\xa5files\x90"])
def test_a_damaged_store_is_replaced(tmp_path: Path, damage: bytes, reads: list[Path]) -> None:
    path, store = write(tmp_path, gguf()), tmp_path / "store"
    store.write_bytes(damage)
    kept = HeaderCache(store)
    kept.read(path)
    kept.save()
    assert HeaderCache(store).read(path) == read_model(path)
    assert reads == [path]


def test_a_damaged_entry_is_read_again(tmp_path: Path, reads: list[Path]) -> None:
    path, store = write(tmp_path, gguf()), tmp_path / "store"
    kept = HeaderCache(store)
    kept.read(path)
    kept.save()
    store.write_bytes(store.read_bytes().replace(b"architecture\xa5llama", b"architecture\x01llama"))
    assert HeaderCache(store).read(path).architecture == "llama"
    assert reads == [path, path]


def test_a_store_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    path = write(tmp_path, gguf())
    kept = HeaderCache(path / "no folder" / "store")
    assert kept.read(path).name == "Handmade"
    kept.save()
    assert kept.read(path).name == "Handmade"


def test_the_store_keeps_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[Path]) -> None:
    monkeypatch.setattr(header_cache, "MAX_KEPT", 2)
    paths = [write(tmp_path, gguf(), f"{number}.gguf") for number in range(3)]
    kept = HeaderCache(tmp_path / "store")
    for path in paths:
        kept.read(path)
    kept.save()
    reads.clear()
    again = HeaderCache(tmp_path / "store")
    for path in paths:
        again.read(path)
    assert reads == [paths[0]]
