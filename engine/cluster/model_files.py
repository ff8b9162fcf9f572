"""Files of a model as a front offers them to a node, and the answers of the node.

The transfer is four calls, all of which may be repeated: `offer` asks what the node has, `block` carries bytes,
`finish` ends a file, `abort` gives the transfer up. The first three are answered by a Have, which says what comes next.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from engine.errors import ModelError
from engine.models.gguf import MAX_PARTS, ModelFile
from engine.models.identity import model_hash
from engine.models.incoming import RemoteFile, is_safe_name

BLOCK_BYTES = 4 << 20
"""Most bytes of one block: other messages of the same connection wait behind it, 3 s at 10 megabits a second."""

_MOST_FILES = MAX_PARTS + 16
_MOST_PATH = 4096

Tell = Callable[[float, str], object]
"""Callback with the share done, 0 to 1, and what is being done; what it raises ends the work."""


class FileOffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a model: its name without folders, its size in bytes and its SHA-256 in hexadecimal digits."""

    name: str
    size: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}\\Z")]

    def __post_init__(self) -> None:
        if not is_safe_name(self.name) or self.name.startswith("."):
            raise ValueError(f"{self.name[:200]!r} cannot be the name of a model's file")

    @property
    def remote(self) -> RemoteFile:
        """The file as one that arrives."""
        return RemoteFile(self.name, self.size, self.sha256, "")


class ModelOffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model of the front: the path that it has there, and its files, which lie beside each other.

    is_folder: path is that of a folder of safetensors, else of its first file. Raises ValueError for names that could
    leave the folder, start with a dot or occur twice.
    """

    path: Annotated[str, msgspec.Meta(max_length=_MOST_PATH)]
    is_folder: bool
    files: Annotated[tuple[FileOffer, ...], msgspec.Meta(min_length=1, max_length=_MOST_FILES)]

    def __post_init__(self) -> None:
        if len({file.name.casefold() for file in self.files}) < len(self.files):
            raise ValueError("two of the model's files have the same name")

    @property
    def key(self) -> str:
        """SHA-256 of names, sizes and hashes: the same for the same files, whatever their folder."""
        lines = [f"{file.name} {file.size} {file.sha256}\n" for file in self.files]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def name(self) -> str:
        """Name of the model's file or folder, for messages."""
        return Path(self.path).name

    def places(self) -> list[Path]:
        """Return the paths of the files on the machine that has the model at `path`."""
        folder = Path(self.path) if self.is_folder else Path(self.path).parent
        return [folder / file.name for file in self.files]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, which `msgspec.convert` reads again."""
        return dict(msgspec.to_builtins(self))


State = Literal["whole", "wanted", "checking", "busy", "lost", "failed"]
"""State of a model on a node.

whole: all files are there. wanted: a block is expected. checking: files that are there are being read for their hash.
busy: another transfer brings the same files. lost: the node knows nothing of this transfer, offer again. failed: it
cannot have the model.
"""


class Have(msgspec.Struct, frozen=True):
    """What a node has of a model.

    share: done, 0 to 1, of the check or of the transfer. path: of the whole model there. index, offset: the file and
    the byte that come next where one is wanted. error: why it failed, as a clause that names neither model nor node.
    """

    state: State
    share: float = 0.0
    path: str = ""
    index: int = 0
    offset: int = 0
    error: str = ""


def model_offer(model: ModelFile, tell: Tell = lambda _share, _doing: None) -> ModelOffer:
    """Return the offer of a model of this machine. Reads each file for its hash, unless `model_hash` has stored it.

    Raises ModelError where a file cannot be read or has a name that no node would take, and what `tell` raises.
    """
    files = []
    try:
        sizes = [path.stat().st_size for path in model.files]
    except OSError as error:
        raise ModelError(f"{model.path}: cannot be read ({error})") from error
    total = sum(sizes) or 1
    for index, (path, size) in enumerate(zip(model.files, sizes, strict=True)):
        before = sum(sizes[:index])

        def report(num_bytes: int, before: int = before, name: str = path.name) -> None:
            tell((before + num_bytes) / total, f"reading {name} for its hash")

        files.append((path.name, size, model_hash(path, tell=report)))
    try:
        return ModelOffer(str(model.path), model.is_folder, tuple(FileOffer(*file) for file in files))
    except ValueError as error:
        raise ModelError(f"{model.path}: {error}; rename it to send it to a node") from None
