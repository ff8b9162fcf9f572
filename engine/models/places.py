"""Places of model files on this machine: folders of the settings and caches of other programs. Nothing is written.

The hub's cache stores files as links, models--owner--name/snapshots/commit/file to blobs (huggingface_hub, "Understand
caching"); Ollama describes each model in a manifest, manifests/host/namespace/name/tag, whose layers are files in
blobs.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from engine.errors import ConfigError
from engine.files import decoded_json, named_path, open_regular
from engine.models.folders import is_model_folder
from engine.models.header import OTHER_PART_NAME
from engine.settings import Settings, shipped_folder

MAX_DEPTH = 3
MAX_FILES = 2_000
MAX_FOLDERS = 5_000
MAX_MANIFEST = 1 << 20

Layout = Literal["folder", "hub", "ollama"]

_SENTENCES = "modules.json"
"""File of a folder that computes embeddings (sentence-transformers) and generates no text."""

_MODEL_LAYER = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Place:
    """Folder with model files, absolute. is_own: named in the settings; all other places are never modified."""

    name: str
    folder: Path
    layout: Layout = "folder"
    is_own: bool = False


@dataclass(frozen=True)
class Candidate:
    """Possible model file of a place. `label` is its name there; `refusal` why it is not opened, else empty."""

    path: Path
    label: str
    refusal: str = ""


def find_places(settings: Settings | None = None, environment: Mapping[str, str] = os.environ) -> list[Place]:
    """Return the folder of the shipped model, the folders of the settings, and the existing caches of other programs.

    The caches are located by HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and OLLAMA_MODELS as those programs do.
    """
    own = (settings or Settings.from_environment()).model_folders
    home = Path(environment.get("HOME") or Path.home())
    return [
        Place("Embedded", shipped_folder() / "demo"),
        *(Place("Models", folder, is_own=True) for folder in own),
        *(place for place in _of_other_programs(home, environment) if os.path.isdir(place.folder)),
    ]


def _of_other_programs(home: Path, environment: Mapping[str, str]) -> Iterator[Place]:
    def named(*variables: str) -> Path | None:
        text = next(filter(None, map(environment.get, variables)), "")
        with suppress(ConfigError):  # a folder that cannot be is as good as none
            return named_path(os.path.expandvars(text)) if text else None
        return None

    caches = named("XDG_CACHE_HOME") or home / ".cache"
    hub = named("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE") or (named("HF_HOME") or caches / "huggingface") / "hub"
    yield Place("Hugging Face", hub, "hub")
    for folder in (home / ".lmstudio/models", home / ".cache/lm-studio/models"):
        yield Place("LM Studio", folder)
    chosen = named("OLLAMA_MODELS")
    for folder in (chosen,) if chosen else (home / ".ollama/models", Path("/usr/share/ollama/.ollama/models")):
        yield Place("Ollama", folder, "ollama")


def candidates(place: Place) -> Iterator[Candidate]:
    """Yield the candidates of a place, folder by folder, without later parts of split models; none if it is missing.

    A link that leads out of the place is refused, and so is a folder that cannot be read; where a limit ends the
    search, the last candidate says so. Only the manifests of Ollama are opened.
    """
    for number, candidate in enumerate(_LAYOUTS[place.layout](place.folder)):
        if number == MAX_FILES:
            refusal = f"holds more than {MAX_FILES:,} model files; the others are not listed"
            yield Candidate(place.folder, place.folder.name, refusal)
            return
        target = leads_to(candidate.path, place.folder)
        if target is not None and not candidate.refusal:
            candidate = replace(candidate, refusal=link_refusal(target))
        yield candidate


def leads_to(path: Path, folder: Path) -> Path | None:
    """Return the link target of a path where it is outside of the folder, else None."""
    target = Path(os.path.realpath(path))
    return None if target.is_relative_to(os.path.realpath(folder)) else target


def link_refusal(target: Path) -> str:
    """Return the reason why a link to `target` is not followed."""
    return (
        f"is a link to {target}, outside its folder, and is not followed. To use the target, add its folder to "
        "LOGITBENCH_MODELS"
    )


def _in_folder(folder: Path) -> Iterator[Candidate]:
    """Yield GGUF files and model folders up to three levels below; hidden files and folders are skipped, linked folders
    not followed."""

    def offered(path: Path, refusal: str = "") -> Candidate:
        return Candidate(path, path.relative_to(folder).as_posix(), refusal)

    unread: list[OSError] = []
    for num_before, (root, names, files) in enumerate(os.walk(folder, onerror=unread.append)):
        if num_before == MAX_FOLDERS:
            refusal = f"holds more than {MAX_FOLDERS:,} folders; the others were not searched"
            yield Candidate(folder, folder.name, refusal)
            break
        here = Path(root)
        is_deepest = len(here.relative_to(folder).parts) == MAX_DEPTH
        names[:] = [] if is_deepest else sorted(name for name in names if not name.startswith("."))
        linked = [here / name for name in names if os.path.islink(here / name)]
        yield from (offered(path) for path in linked if leads_to(path, folder) is not None)
        if is_model_folder(here) and not (here / _SENTENCES).is_file():
            yield offered(here)
        shown = sorted(name for name in files if name.lower().endswith(".gguf") and not name.startswith("."))
        yield from (offered(here / name) for name in shown if not OTHER_PART_NAME.search(name))
        yield from (offered(here / name, refusal) for name, refusal in _missing_parts(shown))
    yield from _not_looked_into(unread)


def _missing_parts(files: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the first parts that are missing although later ones exist, each with the refusal."""
    others = (name for name in files if OTHER_PART_NAME.search(name))
    firsts = {OTHER_PART_NAME.sub("", name) + f"-00001-of-{name[-10:-5]}.gguf": name for name in others}
    for first, other in firsts.items():
        if first not in files:
            yield first, f"is missing, although {other} exists; get the missing part of this model"


def _not_looked_into(errors: list[OSError]) -> Iterator[Candidate]:
    for error in errors:
        if not isinstance(error, FileNotFoundError):
            folder = Path(error.filename)
            yield Candidate(folder, folder.name, f"cannot be read ({error.strerror})")


def _in_hub(folder: Path) -> Iterator[Candidate]:
    """Yield the files of every snapshot of every repository, labelled owner/name; two snapshots may share a file."""
    unread: list[OSError] = []
    for repository in sorted(next(os.walk(folder, onerror=unread.append), ("", [], []))[1]):
        kind, *names = repository.split("--")
        if kind == "models":
            for candidate in _in_folder(folder / repository / "snapshots"):
                yield replace(candidate, label="/".join(names))
    yield from _not_looked_into(unread)


class _Layer(msgspec.Struct, rename="camel"):
    media_type: str = ""
    digest: str = ""


class _Manifest(msgspec.Struct):
    layers: list[_Layer] | None = None


def _in_ollama(folder: Path) -> Iterator[Candidate]:
    """Yield the model of each manifest, labelled as Ollama lists it."""
    unread: list[OSError] = []
    for manifests in (folder / "manifests", folder / "manifests-v2"):
        for root, names, files in os.walk(manifests, onerror=unread.append):
            names.sort()
            for path in (Path(root, name) for name in sorted(files) if not name.startswith(".")):
                yield from _of_manifest(path, _ollama_name(path.relative_to(manifests).parts), folder)
    yield from _not_looked_into(unread)


def _of_manifest(path: Path, label: str, folder: Path) -> Iterator[Candidate]:
    if leads_to(path, folder) is not None:
        yield Candidate(path, label)
        return
    try:
        manifest = decoded_json(_small_file(path), _Manifest)
    except (OSError, ValueError) as error:
        yield Candidate(path, label, f"is not an Ollama manifest ({error})")
        return
    for layer in manifest.layers or []:
        if layer.media_type == _MODEL_LAYER:
            digest = _DIGEST.fullmatch(layer.digest)
            if digest is None:
                yield Candidate(path, label, f"refers to a file {layer.digest!r}; it must be sha256 and 64 digits")
            else:
                yield Candidate(folder / "blobs" / f"sha256-{digest[1]}", label)


def _small_file(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError("it is not a regular file")
    with open_regular(path) as file:
        content = file.read(MAX_MANIFEST + 1)
    if len(content) > MAX_MANIFEST:
        raise ValueError(f"it is longer than {MAX_MANIFEST:,} bytes")
    return content


def _ollama_name(parts: tuple[str, ...]) -> str:
    """Return name:tag, with its host and owner where they are not Ollama's own."""
    names = list(parts)
    if names[:1] == ["registry.ollama.ai"]:
        del names[: 2 if names[1:2] == ["library"] else 1]
    return ":".join(["/".join(names[:-1]), *names[-1:]])


_LAYOUTS: dict[Layout, Callable[[Path], Iterator[Candidate]]] = {
    "folder": _in_folder,
    "hub": _in_hub,
    "ollama": _in_ollama,
}
