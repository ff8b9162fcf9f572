"""The bytes of a GGUF header, read from an untrusted file: bounded in time and memory, every fault a ModelError.

Follows the rules by which llama.cpp refuses a file (gguf.cpp), so that a file that passes here is not refused there
for its header. The file is read in pieces, never mapped: a mapped file that shrinks ends the process.
"""

import re
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

from engine.errors import ModelError
from engine.models.ggml import TYPES_BY_NUMBER, TensorType

Scalar = str | int | float | bool
Value = Scalar | tuple[Scalar, ...]

FIRST_PART_NAME = re.compile(r"-00001-of-(\d{5})\.gguf$")
OTHER_PART_NAME = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
MAX_HEADER = 128 << 20
MAX_KEYS = 1 << 13
MAX_TENSORS = 1 << 16
MAX_KEY = 1 << 10
MAX_NAME = 63
MAX_DIMS = 4
MAX_KEPT_TEXT = 1 << 12
MAX_KEPT_TEMPLATE = 1 << 18
MAX_KEPT_ARRAY = 1 << 10
_PIECE = 1 << 20
_MAX_ELEMENTS = (1 << 63) - 1

_STRING, _ARRAY = 8, 9
_SCALARS = {
    number: struct.Struct("<" + code)
    for number, code in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
_U32, _U64 = _SCALARS[4], _SCALARS[10]


class TensorInfo(NamedTuple):
    """One tensor of the file: `shape` with the row length first, as in the file; `offset` in bytes from its start."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int

    @property
    def num_values(self) -> int:
        """Numbers in it."""
        product = 1
        for dimension in self.shape:
            product *= dimension
        return product

    @property
    def num_bytes(self) -> int:
        """Bytes it takes in the file."""
        return self.type.size_of(self.num_values)


@dataclass(frozen=True)
class Header:
    """Everything before the tensor data.

    Numeric arrays of up to 1,024 elements are kept in `metadata` as tuples; of the others only the length, in
    `array_lengths`, which has all arrays. Text is cut at 4,096 bytes, except the chat template.
    """

    version: int
    metadata: dict[str, Value]
    array_lengths: dict[str, int]
    tensors: tuple[TensorInfo, ...]


def read_header(path: Path) -> Header:
    """Read the header of `path` and check that all tensor data lies within the file.

    Raises ModelError naming the file and the reason.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
            raise ModelError(f"{path}: is {kind}; a GGUF file is needed")
        with path.open("rb", buffering=0) as file:
            return _Parser(path, file, status.st_size).header()
    except FileNotFoundError as error:
        raise ModelError(f"{path}: there is no such file") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read ({error})") from error


class _Parser:
    """A position in the file, with the piece of it that is in memory."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path = path
        self.file = file
        self.size = size
        self.end = min(size, MAX_HEADER)
        self.piece = b""
        self.start = 0
        self.at = 0

    def header(self) -> Header:
        version = self.magic_and_version()
        num_tensors = self.number(_U64, "the number of tensors")
        num_keys = self.number(_U64, "the number of keys")
        if num_tensors > MAX_TENSORS or num_keys > MAX_KEYS:
            self.refuse(
                f"claims {num_tensors:,} tensors and {num_keys:,} keys; up to {MAX_TENSORS:,} and {MAX_KEYS:,} are read"
            )
        metadata, lengths = self.keys(num_keys)
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
            self.refuse(f"general.alignment is {alignment!r}, not a power of two")
        return Header(version, metadata, lengths, self.tensors(num_tensors, alignment))

    def refuse(self, reason: str) -> NoReturn:
        raise ModelError(f"{self.path}: {reason}")

    def magic_and_version(self) -> int:
        if self.size == 0:
            self.refuse("is empty")
        magic = self.take(min(4, self.size), "the first bytes")
        if magic != b"GGUF":
            self.refuse(f"is not a GGUF file: it begins with {magic!r}, not b'GGUF'")
        version = self.number(_U32, "the version")
        if version & 0xFFFF == 0 and version:
            self.refuse("is a big-endian GGUF file; only little-endian ones are read")
        if version not in (2, 3):
            self.refuse(f"is GGUF version {version:,}; versions 2 and 3 are read")
        return version

    def take(self, count: int, what: str) -> bytes:
        """The next `count` bytes; more than a piece only for the chat template."""
        self.need(count, what)
        first = self.at - self.start
        if first + count > len(self.piece):
            self.load(max(count, _PIECE))
            first = 0
            if len(self.piece) < count:
                self.refuse(f"ends within {what}: it became shorter while it was read")
        self.at += count
        return self.piece[first : first + count]

    def need(self, count: int, what: str) -> None:
        if count <= self.end - self.at:
            return
        if self.size > MAX_HEADER:
            self.refuse(f"has a header of more than {MAX_HEADER >> 20} MiB, at {what}")
        self.refuse(
            f"is truncated: {what} needs {count:,} bytes at position {self.at:,}, but the file has only {self.size:,}"
        )

    def load(self, count: int) -> None:
        self.file.seek(self.at)
        self.piece = self.file.read(min(count, self.end - self.at))
        self.start = self.at

    def number(self, kind: struct.Struct, what: str) -> int:
        value: int = kind.unpack(self.take(kind.size, what))[0]
        return value

    def text(self, limit: int, what: str) -> str:
        """A string of at most `limit` bytes."""
        length = self.number(_U64, what)
        if length > limit:
            self.refuse(f"{what} is {length:,} bytes long; up to {limit:,} are read")
        return self.take(length, what).decode("utf-8", "replace")

    def keys(self, num_keys: int) -> tuple[dict[str, Value], dict[str, int]]:
        metadata: dict[str, Value] = {}
        lengths: dict[str, int] = {}
        for index in range(num_keys):
            key = self.text(MAX_KEY, f"key {index:,}")
            if not key or key in metadata or key in lengths:
                self.refuse(f"key {index:,} {key!r} is {'given twice' if key else 'empty'}")
            kind = self.number(_U32, key)
            if kind == _ARRAY:
                lengths[key], values = self.array(key)
                if values is not None:
                    metadata[key] = values
            else:
                value = self.scalar(kind, key)
                if value is not None:
                    metadata[key] = value
        return metadata, lengths

    def scalar(self, kind: int, key: str) -> Scalar | None:
        """A value; None for a chat template too long to keep, since a cut one would render something else."""
        if kind != _STRING:
            value: Scalar = self.layout(kind, key).unpack(self.take(self.layout(kind, key).size, key))[0]
            return value
        length = self.number(_U64, key)
        is_template = key.startswith("tokenizer.chat_template")
        kept = min(length, MAX_KEPT_TEMPLATE if key == "tokenizer.chat_template" else MAX_KEPT_TEXT)
        self.need(length, key)
        text = self.take(kept, key).decode("utf-8", "replace" if kept == length else "ignore")
        self.at += length - kept
        return None if is_template and kept < length else text

    def layout(self, kind: int, key: str) -> struct.Struct:
        if kind not in _SCALARS:
            self.refuse(f"{key!r} has the unknown type {kind:,}")
        return _SCALARS[kind]

    def array(self, key: str) -> tuple[int, tuple[Scalar, ...] | None]:
        """Length of an array, and its values where they are few numbers."""
        kind = self.number(_U32, key)
        length = self.number(_U64, key)
        if kind == _STRING:
            self.need(8 * length, key)
            self.skip_strings(length, key)
            return length, None
        layout = self.layout(kind, key)
        self.need(layout.size * length, key)
        if length > MAX_KEPT_ARRAY:
            self.at += layout.size * length
            return length, None
        raw = self.take(layout.size * length, key)
        return length, tuple(values[0] for values in layout.iter_unpack(raw))

    def skip_strings(self, count: int, key: str) -> None:
        """Step over `count` strings; this loop is the time that reading a header takes."""
        unpack: Callable[[bytes, int], tuple[int]] = _U64.unpack_from
        while count:
            self.need(8, key)
            if self.at + 8 > self.start + len(self.piece):
                self.load(_PIECE)
            piece, at = self.piece, self.at - self.start
            last = len(piece) - 8
            if last < 0:
                self.refuse(f"ends within {key}: it became shorter while it was read")
            while count and at <= last:
                at += 8 + unpack(piece, at)[0]
                count -= 1
            self.at = self.start + at
        self.need(0, key)

    def tensors(self, num_tensors: int, alignment: int) -> tuple[TensorInfo, ...]:
        found = [self.tensor(index) for index in range(num_tensors)]
        if len({tensor.name for tensor in found}) < num_tensors:
            self.refuse("two of its tensors have the same name")
        data = -(-self.at // alignment) * alignment
        expected = 0
        for index, tensor in enumerate(found):
            if tensor.offset != expected:
                self.refuse(f"tensor {tensor.name} lies at {tensor.offset:,} of the data, expected at {expected:,}")
            tensor = found[index] = tensor._replace(offset=data + expected)
            if tensor.offset + tensor.num_bytes > self.size:
                self.refuse(
                    f"is truncated: tensor {tensor.name} ({index + 1:,} of {num_tensors:,}) ends at byte "
                    f"{tensor.offset + tensor.num_bytes:,}, but the file has only {self.size:,}; get the whole file"
                )
            expected += -(-tensor.num_bytes // alignment) * alignment
        return tuple(found)

    def tensor(self, index: int) -> TensorInfo:
        """One tensor, its offset still counted from the start of the data."""
        name = self.text(MAX_NAME, f"the name of tensor {index:,}")
        what = f"tensor {name!r}"
        num_dims = self.number(_U32, what)
        if num_dims > MAX_DIMS:
            self.refuse(f"{what} has {num_dims:,} dimensions; up to {MAX_DIMS} are read")
        shape = struct.unpack(f"<{num_dims}Q", self.take(8 * num_dims, what))
        number = self.number(_U32, what)
        offset = self.number(_U64, what)
        if number not in TYPES_BY_NUMBER:
            self.refuse(f"{what} has the unknown type {number:,}")
        tensor = TensorInfo(name, shape, TYPES_BY_NUMBER[number], offset)
        row = shape[0] if shape else 1
        if max((*shape, tensor.num_values)) > _MAX_ELEMENTS:
            self.refuse(f"{what} has the impossible shape {shape}")
        if row % tensor.type.block:
            self.refuse(f"{what} has rows of {row:,}, not a multiple of {tensor.type.name}'s {tensor.type.block}")
        return tensor
