"""Model folders of the settings, and the caches of the hub, LM Studio and Ollama."""

import json
import os
from pathlib import Path

import pytest

from engine.models.gguf import ModelFile
from engine.models.library import BrokenFile, LibraryEntry, read_library
from engine.models.places import MAX_MANIFEST, Place, find_places
from engine.settings import Settings
from tests.engine.models.headers import gguf, write

DIGEST = "a1" * 32
MODEL = "application/vnd.ollama.image.model"


def folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def layers(*layers: tuple[str, str]) -> str:
    return json.dumps({"schemaVersion": 2, "layers": [{"mediaType": kind, "digest": name} for kind, name in layers]})


def manifest(root: Path, name: str, content: str) -> Path:
    path = root / "manifests" / name
    folder(path.parent)
    path.write_text(content)
    return path


def labels(entries: list[LibraryEntry]) -> list[str]:
    return [entry.label for entry in entries]


def reasons(entries: list[LibraryEntry]) -> dict[str, str]:
    return {entry.label: entry.file.reason for entry in entries if isinstance(entry.file, BrokenFile)}


def test_the_shipped_model_and_the_folders_of_the_settings_are_always_searched(tmp_path: Path) -> None:
    settings = Settings.from_environment({"LOGITBENCH_MODELS": os.pathsep.join(("/none/a", "/none/b"))})
    found = find_places(settings, {"HOME": str(tmp_path)})
    assert [(place.name, str(place.folder), place.is_own) for place in found[1:]] == [
        ("Models", "/none/a", True),
        ("Models", "/none/b", True),
    ]
    (embedded,) = read_library(found)
    assert (embedded.place.name, embedded.place.is_own, embedded.label) == ("Embedded", False, "story.gguf")


def test_caches_of_other_programs_are_searched_where_they_are(tmp_path: Path) -> None:
    usual = [".cache/huggingface/hub", ".lmstudio/models", ".cache/lm-studio/models", ".ollama/models"]
    for name in usual:
        folder(tmp_path / name)
    found = find_places(Settings.from_environment({}), {"HOME": str(tmp_path)})[2:]
    assert [str(place.folder.relative_to(tmp_path)) for place in found if tmp_path in place.folder.parents] == usual
    assert not any(place.is_own for place in found)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HF_HUB_CACHE": "{}/a", "HF_HOME": "{}/b"}, "a"),
        ({"HUGGINGFACE_HUB_CACHE": "{}/a"}, "a"),
        ({"HF_HOME": "{}/b", "XDG_CACHE_HOME": "{}/c"}, "b/hub"),
        ({"XDG_CACHE_HOME": "{}/c"}, "c/huggingface/hub"),
        ({"OLLAMA_MODELS": "{}/d"}, "d"),
    ],
)
def test_their_own_variables_move_them(tmp_path: Path, variables: dict[str, str], expected: str) -> None:
    folder(tmp_path / expected)
    given = {name: value.format(tmp_path) for name, value in variables.items()} | {"HOME": str(tmp_path / "nobody")}
    found = find_places(Settings.from_environment({}), given)
    assert [place.folder for place in found if tmp_path in place.folder.parents] == [tmp_path / expected]


def test_the_cache_of_the_hub_is_links_to_its_own_blobs(tmp_path: Path) -> None:
    blobs, outside = folder(tmp_path / "hub/models--owner--name/blobs"), folder(tmp_path / "outside")
    blob, stranger = write(blobs, gguf(), DIGEST), write(outside, gguf())
    snapshots = blobs.parent / "snapshots"
    old, new = folder(snapshots / "1234"), folder(snapshots / "5678/quantised")
    for path, target in ((old / "m.gguf", blob), (new / "m.gguf", blob), (new / "odd.gguf", stranger)):
        path.symlink_to(os.path.relpath(target, path.parent))
    write(folder(tmp_path / "hub/datasets--owner--name/snapshots/1"), gguf())
    write(folder(tmp_path / "hub/.locks"), gguf())
    found = read_library([Place("Hugging Face", tmp_path / "hub", "hub")])
    assert labels(found) == ["owner/name", "owner/name"]
    assert [isinstance(entry.file, ModelFile) for entry in found] == [True, False]
    assert found[0].file.path == old / "m.gguf"
    assert f"is a link to {stranger}" in reasons(found)["owner/name"]


def test_ollama_names_its_files_in_manifests(tmp_path: Path) -> None:
    blob = write(folder(tmp_path / "blobs"), gguf(), f"sha256-{DIGEST}")
    content = layers((MODEL, f"sha256:{DIGEST}"), ("application/vnd.ollama.image.license", "sha256:" + "b" * 64))
    for name in ("registry.ollama.ai/library/story/7m", "registry.ollama.ai/library/story/latest"):
        manifest(tmp_path, name, content)
    manifest(tmp_path, "registry.ollama.ai/library/cloudy/latest", '{"layers": null}')
    write(folder(tmp_path / "blobs"), gguf(), f"sha256-{'c' * 64}")
    manifest(tmp_path, "hf.co/owner/name/Q8_0", layers((MODEL, f"sha256:{'c' * 64}")))
    manifest(tmp_path, "registry.ollama.ai/someone/gone/1", layers((MODEL, f"sha256:{'d' * 64}")))
    found = read_library([Place("Ollama", tmp_path, "ollama")])
    assert labels(found) == ["hf.co/owner/name:Q8_0", "story:7m, story:latest", "someone/gone:1"]
    assert [entry.name for entry in found] == labels(found)
    assert found[1].file.path == blob
    assert reasons(found)["someone/gone:1"].endswith(f"sha256-{'d' * 64}: there is no such file")


WRONG = {
    "is not an Ollama manifest": "{",
    "Expected `array | null`": '{"layers": 5}',
    "is longer than": " " * (MAX_MANIFEST + 1),
    "it must be sha256 and 64 digits": layers((MODEL, "sha256:../../../etc/passwd")),
    "refers to a file '/etc/passwd'": layers((MODEL, "/etc/passwd")),
}


@pytest.mark.parametrize("reason", WRONG)
def test_a_wrong_manifest_is_said(tmp_path: Path, reason: str) -> None:
    path = manifest(tmp_path, "registry.ollama.ai/library/odd/latest", WRONG[reason])
    (entry,) = read_library([Place("Ollama", tmp_path, "ollama")])
    assert reasons([entry])["odd:latest"].startswith(f"{path}: ")
    assert reason in reasons([entry])["odd:latest"]


def test_nothing_of_ollama_is_read_outside_or_without_end(tmp_path: Path) -> None:
    root = folder(tmp_path / "ollama")
    stranger = tmp_path / "secret.json"
    stranger.write_text(layers((MODEL, f"sha256:{DIGEST}")))
    manifest(root, "registry.ollama.ai/library/linked/latest", "").unlink()
    (root / "manifests/registry.ollama.ai/library/linked/latest").symlink_to(stranger)
    os.mkfifo(root / "manifests/registry.ollama.ai/library/linked/pipe")
    blob = folder(root / "blobs") / f"sha256-{'e' * 64}"
    blob.symlink_to(write(tmp_path, gguf()))
    manifest(root, "registry.ollama.ai/library/blob/latest", layers((MODEL, f"sha256:{'e' * 64}")))
    said = reasons(read_library([Place("Ollama", root, "ollama")]))
    assert f"is a link to {stranger}" in said["linked:latest"]
    assert "it is not a regular file" in said["linked:pipe"]
    assert f"is a link to {tmp_path / 'model.gguf'}" in said["blob:latest"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look into every folder")
def test_a_folder_that_cannot_be_looked_into_is_said(tmp_path: Path) -> None:
    closed = folder(tmp_path / "closed")
    write(closed, gguf())
    closed.chmod(0)
    try:
        assert "Permission denied" in reasons(read_library([Place("Here", tmp_path)]))["closed"]
    finally:
        closed.chmod(0o700)
