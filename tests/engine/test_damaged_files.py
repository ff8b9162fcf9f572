"""Files that another program may have damaged or replaced: each reader treats them as absent or says what is wrong."""

from pathlib import Path

import msgspec
import pytest

from engine import Pool
from engine.embedding.choice import Measurement, keep_measurement, kept_measurement
from engine.embedding.models import EmbeddingModel
from engine.errors import ConfigError
from engine.models.header_cache import HeaderCache
from engine.models.identity import known_hashes, model_hash
from engine.models.library import BrokenFile, read_library
from engine.models.places import Place
from engine.models.reading import read_model

DEPTH = 100_000
CONTENTS = {
    "nested lists of JSON": b"[" * DEPTH + b"]" * DEPTH,
    "nested objects of JSON": b'{"layers":' * DEPTH + b"1" + b"}" * DEPTH,
    "nested lists of MessagePack": b"\x91" * DEPTH + b"\xc0",
    "nested maps of MessagePack": b"\x81\xa1a" * DEPTH + b"\xc0",
    "nothing": b"",
    "not UTF-8": b"\xff\xfe{",
    "a number": b"1" * 5000,
    "another type": b"[1, null]",
    "surrogates": b'{"\\ud800": "\\udfff"}',
}


@pytest.fixture(params=CONTENTS)
def content(request: pytest.FixtureRequest) -> bytes:
    return CONTENTS[request.param]


def _written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_damaged_file_of_hashes_counts_as_absent_and_is_replaced(
    tmp_path: Path, story_model: Path, content: bytes
) -> None:
    _written(tmp_path / "models" / "hashes.json", content)
    assert known_hashes([story_model], tmp_path) == {}
    digest = model_hash(story_model, tmp_path)
    assert known_hashes([story_model], tmp_path) == {story_model: digest}


def test_a_damaged_cache_of_headers_counts_as_absent(tmp_path: Path, story_model: Path, content: bytes) -> None:
    cache = HeaderCache(_written(tmp_path / "headers", content))
    assert cache.read(story_model) == read_model(story_model)


def test_a_damaged_header_in_the_cache_counts_as_absent(tmp_path: Path, story_model: Path, content: bytes) -> None:
    store = tmp_path / "headers"
    first = HeaderCache(store)
    first.read(story_model)
    first.save()
    kept = msgspec.msgpack.decode(store.read_bytes())
    for one in kept["files"]:
        one[-1] = content
    assert HeaderCache(_written(store, msgspec.msgpack.encode(kept))).read(story_model) == read_model(story_model)


def test_a_damaged_manifest_is_listed_with_its_reason(tmp_path: Path, content: bytes) -> None:
    _written(tmp_path / "manifests" / "registry.ollama.ai" / "library" / "name" / "latest", content)
    (entry,) = read_library([Place("Ollama", tmp_path, "ollama")])
    assert isinstance(entry.file, BrokenFile)
    assert "is not an Ollama manifest" in entry.file.reason


def test_a_damaged_profile_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigError, match="is not a profile"):
        Pool.from_profile(_written(tmp_path / "profile.json", content))


def test_a_damaged_measurement_of_backends_counts_as_absent(tmp_path: Path, content: bytes) -> None:
    weights = _written(tmp_path / "tiny" / "model.safetensors", b"")
    model = EmbeddingModel("tiny", weights.parent, "", "")
    measured = Measurement("tiny", "2026-11-26T02:00:00", 1, 1, ())
    keep_measurement(model, measured)
    (store,) = model.kept_in().glob("backends-*")
    assert kept_measurement(model) == measured
    store.write_bytes(content)
    assert kept_measurement(model) is None
