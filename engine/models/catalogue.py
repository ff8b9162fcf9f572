"""Model catalogue: recommended models with memory and speed estimates, and the downloadable choices of a repository."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from engine.errors import ConfigError
from engine.models.ggml import FILE_TYPES
from engine.models.header import FIRST_PART_NAME, OTHER_PART_NAME
from engine.models.hub import Repository, parse_address, read_repository
from engine.models.incoming import RemoteFile
from engine.models.library import shipped
from engine.models.memory import PROCESS_BYTES
from engine.units import quantity
from engine.validation import Spec

Kind = Literal["text", "embedding"]
KINDS: tuple[Kind, ...] = ("text", "embedding")

BUFFER_BYTES = 192 << 20
"""Compute and output buffers for one sequence and batches of 512 tokens: the maximum over all models listed."""

TORCH_BYTES = 480 << 20
"""Memory of a process with torch 2.13 and sentence-transformers, measured; a folder's model needs it in addition."""

READABLE_PER_S = 10.0
"""Decode speed in tokens per second from which on an answer comes faster than most people read."""

_F16 = 2
_QUANTISATION = re.compile(
    rf"(?<![A-Za-z0-9])({'|'.join(sorted(FILE_TYPES.values(), key=len, reverse=True))})(?![A-Za-z0-9_])", re.IGNORECASE
)
_NOT_MODELS = ("mmproj", "imatrix")
_MODULE_FOLDER = re.compile(r"\d+_[A-Za-z]+")
_OF_EMBEDDERS = (".json", ".txt", ".model", ".safetensors")


@dataclass(frozen=True, kw_only=True)
class Entry(Spec):
    """Catalogue entry of one model.

    quantisation: which of the repository's GGUF files; empty for a folder of safetensors. size_gb: 10^9 bytes.
    n_layer, n_head_kv and head_size (values of a head's key) determine the KV cache of a text model; num_computed:
    parameters of an embedding model used in the computation of each token, all but the embeddings.
    """

    name: str
    title: str
    kind: Kind
    repository: str
    quantisation: str = ""
    license: str
    is_gated: bool = False
    size_gb: float
    num_parameters: int
    num_computed: int = 0
    n_ctx_train: int
    n_layer: int = 0
    n_head_kv: int = 0
    head_size: int = 0
    note: str = ""

    def __post_init__(self) -> None:
        self._one_of("kind", KINDS)
        self._one_of("quantisation", ("", *FILE_TYPES.values()))
        self._real("size_gb", 0.001, 50)
        self._whole("num_parameters", 1_000_000, 1 << 40)
        self._whole("n_ctx_train", 16, 1 << 24)
        for name in ("n_layer", "n_head_kv", "head_size"):
            self._whole(name, 1 if self.kind == "text" else 0, 1 << 16)
        self._whole("num_computed", 0 if self.kind == "text" else 1, self.num_parameters)

    @property
    def size_bytes(self) -> int:
        """Bytes to download, to three digits."""
        return round(self.size_gb * 1e9)

    def needed_bytes(self, n_ctx: int = 4096) -> int:
        """Return the bytes of memory to run it with one sequence of `n_ctx` tokens, at most its trained context.

        Sum of weights, f16 keys and values of every layer at full length, buffers and process; for a folder, weights
        and a process with torch. `engine.models.estimate` is more exact once the file is downloaded.
        """
        if not self.quantisation:
            return self.size_bytes + TORCH_BYTES
        kv = 2 * _F16 * self.n_layer * self.n_head_kv * self.head_size * min(n_ctx, self.n_ctx_train)
        return self.size_bytes + kv + BUFFER_BYTES + PROCESS_BYTES

    def tokens_per_s(self, bandwidth_bytes_per_s: float) -> float:
        """Return the expected decode speed of a text model with one sequence at this bandwidth (engine.bench's limits).

        The roofline of decoding: each token reads the whole file once. NaN for an embedding model.
        """
        return bandwidth_bytes_per_s / self.size_bytes if self.kind == "text" else math.nan

    def texts_per_s(self, flops: float, num_tokens: int = 100) -> float:
        """Return the expected texts of `num_tokens` per second of an embedding model, where matrices reach `flops`.

        The roofline of a batch: two operations per parameter and token. NaN for a text model.
        """
        return flops / (2 * self.num_computed * num_tokens) if self.kind == "embedding" else math.nan


class Picks(NamedTuple):
    """Text models to choose on a machine: the largest that fits, and the largest that may reach READABLE_PER_S too.

    Either is None where there is none; the second also where the memory bandwidth is not known.
    """

    largest: Entry | None
    readable: Entry | None


class Catalogue(NamedTuple):
    """Catalogue that ships. dated: year and month; source: origin of its figures."""

    dated: str
    source: str
    entries: tuple[Entry, ...]

    def named(self, name: str) -> Entry:
        """Return the entry of that name; raises ConfigError listing the names."""
        for entry in self.entries:
            if entry.name == name.strip().casefold():
                return entry
        raise ConfigError(
            f"{name!r} is not in the catalogue. Use owner/name for any repository on the hub, or one of "
            f"{', '.join(entry.name for entry in self.entries)}"
        )

    def picks(self, free_bytes: int, bandwidth_bytes_per_s: float = math.nan, n_ctx: int = 4096) -> Picks:
        """Return the models to choose with this free memory and bandwidth, at a context of `n_ctx` tokens."""
        fitting = [one for one in self.entries if one.kind == "text" and one.needed_bytes(n_ctx) <= free_bytes]
        fast = [one for one in fitting if one.tokens_per_s(bandwidth_bytes_per_s) >= READABLE_PER_S]
        return Picks(_biggest(fitting), _biggest(fast))


def _biggest(entries: Sequence[Entry]) -> Entry | None:
    return max(entries, key=lambda entry: (entry.num_parameters, entry.size_bytes), default=None)


@dataclass(frozen=True)
class Choice:
    """Downloadable model of a repository: a GGUF file with all its parts, or a folder for sentence-transformers.

    quantisation is read from the name, and empty where the name has none.
    """

    name: str
    kind: Literal["gguf", "folder"]
    quantisation: str
    files: tuple[RemoteFile, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def keys(self) -> set[str]:
        """Accepted keys in lower case: its name, its quantisation, and its files."""
        return {text.casefold() for text in (self.name, self.quantisation, *(file.path for file in self.files))}


def read_catalogue() -> Catalogue:
    """Read the catalogue that ships."""
    data: dict[str, Any] = json.loads(shipped("catalogue", "catalogue.json").read_text("utf-8"))
    return Catalogue(data["dated"], data["source"], tuple(Entry.from_dict(values) for values in data["models"]))


def look_up(name: str, wanted: str = "", endpoint: str = "") -> tuple[Repository, Choice]:
    """Look up a model on the hub by a catalogue name, a repository, or the URL of one of its pages or files.

    wanted: file name or quantisation; empty: the one named by the catalogue or the URL. Raises ConfigError,
    DownloadError and NetworkError as `choose` and `read_repository` do.
    """
    if "/" in name:
        repository = read_repository(name, endpoint)
        return repository, choose(repository, wanted or parse_address(name, endpoint).file)
    entry = read_catalogue().named(name)
    repository = read_repository(entry.repository, endpoint)
    return repository, choose(repository, wanted or entry.quantisation)


def choices(repository: Repository) -> tuple[Choice, ...]:
    """Return the downloadable models of a repository, smallest first; empty where it has none that the engine can run.

    Pickled weights are never offered: opening a pickle runs arbitrary code of its author.
    """
    files = {file.path: file for file in repository.files}
    ggufs = (_gguf(path, files) for path in files if path.endswith(".gguf") and not OTHER_PART_NAME.search(path))
    folder = _embedder(repository)
    found = [choice for choice in (*ggufs, folder) if choice is not None]
    return tuple(sorted(found, key=lambda choice: (choice.num_bytes, choice.name)))


def choose(repository: Repository, wanted: str = "") -> Choice:
    """Return the choice of that file name or quantisation; `wanted` empty: the only choice, or the folder.

    Raises ConfigError listing the choices where none or several match.
    """
    offered = choices(repository)
    if not offered:
        raise ConfigError(
            f"{repository.name} has no GGUF file and no sentence-transformers folder with safetensors. "
            f"Repositories with GGUF files usually have GGUF in their name."
        )
    key = wanted.strip().casefold()
    fitting = [choice for choice in offered if key in choice.keys]
    if not key:
        fitting = [choice for choice in offered if choice.kind == "folder"] or list(offered)
    if len(fitting) != 1:
        said = f"{len(fitting)} models match" if fitting else "no model matches"
        listed = ", ".join(f"{choice.name} ({quantity(choice.num_bytes, 'B')})" for choice in offered[:20])
        raise ConfigError(f"{repository.name}: {said} {wanted!r}. Choose one of: {listed}")
    return fitting[0]


def _gguf(path: str, files: dict[str, RemoteFile]) -> Choice | None:
    """Return the GGUF model whose first file this is; None where it is not a model, or a part of it is missing."""
    name = path.rsplit("/", 1)[-1]
    if name.startswith(_NOT_MODELS):
        return None
    parts: Sequence[str] = [path]
    if first := FIRST_PART_NAME.search(path):
        stem, count = path[: first.start()], int(first[1])
        parts = [f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, min(count, len(files)) + 1)]
        if count > len(parts) or not all(part in files for part in parts):
            return None
    said = _QUANTISATION.search(name)
    return Choice(path, "gguf", said[1].upper() if said else "", tuple(files[part] for part in parts))


def _embedder(repository: Repository) -> Choice | None:
    """Return the files that sentence-transformers opens; None where there is no such model in safetensors."""
    files = tuple(file for file in repository.files if _is_of_embedder(file.path))
    if "modules.json" not in {file.path for file in files} or not any(
        file.path.endswith(".safetensors") for file in files
    ):
        return None
    return Choice(repository.name.rsplit("/", 1)[-1], "folder", "", files)


def _is_of_embedder(path: str) -> bool:
    *folders, name = path.split("/")
    return name.endswith(_OF_EMBEDDERS) and (
        not folders or (len(folders) == 1 and bool(_MODULE_FOLDER.fullmatch(folders[0])))
    )
