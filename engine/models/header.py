"""GGUF header parser for untrusted files: bounded in time and memory, every fault a ModelError.

Follows llama.cpp's rules for rejecting a file (gguf.cpp), so that llama.cpp does not reject the header of a file that
passes this parser. The file is read in pieces, never mapped: a mapped file that shrinks ends the process.
"""

import math
import re
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from engine.errors import ModelError
from engine.models.budget import LIMITS, Budget
from engine.models.ggml import TYPES_BY_NUMBER, TensorType
from engine.models.known_arrays import KnownArrays
from engine.models.pieces import LONG_PIECE, U32, U64, Pieces

Scalar = str | int | float | bool
Value = Scalar | tuple[Scalar, ...]

FIRST_PART_NAME = re.compile(r"-00001-of-(\d{5})\.gguf$")
OTHER_PART_NAME = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
MAX_KEYS = 1 << 13
MAX_TENSORS = LIMITS["tensors"]
MAX_KEY = 1 << 10
MAX_NAME = 63
MAX_DIMS = 4
MAX_KEPT_TEXT = 1 << 12
MAX_KEPT_TEMPLATE = 1 << 18
MAX_KEPT_ARRAY = 1 << 10
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
_TENSORS = [struct.Struct(f"<{num_dims}QIQ") for num_dims in range(MAX_DIMS + 1)]
_LONGEST_TENSOR = 8 + MAX_NAME + 4 + _TENSORS[MAX_DIMS].size
_KNOWN = KnownArrays()


class TensorInfo(NamedTuple):
    """Tensor of the file: `shape` has the row length first, as in the file; `offset` in bytes from the file's start."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int

    @property
    def num_values(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return self.type.size_of(self.num_values)


@dataclass(frozen=True)
class Header:
    """Header of a GGUF file: everything before the tensor data.

    Numeric arrays of up to 1,024 elements are stored in `metadata` as tuples; of the others only the length is stored,
    in `array_lengths`, which has all arrays. Text is truncated to 4,096 bytes, except the chat template.
    """

    version: int
    metadata: dict[str, Value]
    array_lengths: dict[str, int]
    tensors: tuple[TensorInfo, ...]


def read_header(path: Path, budget: Budget | None = None) -> Header:
    """Read the header of `path` and check that all tensor data is within the file.

    `budget`: the read budget shared with the model's other files; None for the first. Raises ModelError naming the file
    and the reason.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise ModelError(f"{path}: is {kind}; a GGUF file is needed")
        with path.open("rb", buffering=0) as file:
            return _Parser(path, file, status.st_size, budget or Budget()).header()
    except FileNotFoundError as error:
        raise ModelError(f"{path}: there is no such file") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read ({error})") from error


class _Parser(Pieces):
    """Parser of the parts of a header, in file order."""

    def header(self) -> Header:
        version = self.magic_and_version()
        num_tensors = self.number(U64, "the number of tensors")
        num_keys = self.number(U64, "the number of keys")
        if num_tensors > MAX_TENSORS or num_keys > MAX_KEYS:
            self.refuse(
                f"claims {num_tensors:,} tensors and {num_keys:,} keys; the limits are {MAX_TENSORS:,} and {MAX_KEYS:,}"
            )
        self.spend("keys", num_keys)
        self.spend("tensors", num_tensors)
        metadata, lengths = self.keys(num_keys)
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
            self.refuse(f"general.alignment is {alignment!r}, not a power of two")
        return Header(version, metadata, lengths, self.tensors(num_tensors, alignment))

    def magic_and_version(self) -> int:
        if self.size == 0:
            self.refuse("is empty")
        magic = self.take(min(4, self.size), "the first bytes")
        if magic != b"GGUF":
            self.refuse(f"is not a GGUF file: it begins with {magic!r}, not b'GGUF'")
        version = self.number(U32, "the version")
        if version & 0xFFFF == 0 and version:
            self.refuse("is a big-endian GGUF file; only little-endian ones are supported")
        if version not in (2, 3):
            self.refuse(f"is GGUF version {version:,}; versions 2 and 3 are supported")
        return version

    def keys(self, num_keys: int) -> tuple[dict[str, Value], dict[str, int]]:
        metadata: dict[str, Value] = {}
        lengths: dict[str, int] = {}
        for index in range(num_keys):
            key = self.text(MAX_KEY, f"key {index:,}")
            if not key or key in metadata or key in lengths:
                self.refuse(f"key {index:,} {key!r} is {'given twice' if key else 'empty'}")
            kind = self.number(U32, key)
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
        """Read a value; None for a chat template too long to store, since a truncated one would render differently."""
        if kind != _STRING:
            value: Scalar = self.layout(kind, key).unpack(self.take(self.layout(kind, key).size, key))[0]
            return value
        length = self.number(U64, key)
        is_template = key.startswith("tokenizer.chat_template")
        kept = min(length, MAX_KEPT_TEMPLATE if key == "tokenizer.chat_template" else MAX_KEPT_TEXT)
        self.need(length, key)
        self.spend("bytes of text", kept)
        text = self.take(kept, key).decode("utf-8", "replace" if kept == length else "ignore")
        self.at += length - kept
        return None if is_template and kept < length else text

    def layout(self, kind: int, key: str) -> struct.Struct:
        if kind not in _SCALARS:
            self.refuse(f"{key!r} has the unknown type {kind:,}")
        return _SCALARS[kind]

    def array(self, key: str) -> tuple[int, tuple[Scalar, ...] | None]:
        """Read an array: its length, and its values where it is a short numeric array."""
        kind = self.number(U32, key)
        length = self.number(U64, key)
        if kind == _STRING:
            self.need(8 * length, key)
            self.spend("strings in arrays", length)
            self.skip_array(length, key)
            return length, None
        layout = self.layout(kind, key)
        self.need(layout.size * length, key)
        if length > MAX_KEPT_ARRAY:
            self.at += layout.size * length
            return length, None
        self.spend("numbers in short arrays", length)
        raw = self.take(layout.size * length, key)
        return length, tuple(values[0] for values in layout.iter_unpack(raw))

    def skip_array(self, count: int, key: str) -> None:
        size = _KNOWN.size_of(key, count, self.file, self.at, self.end - self.at)
        if size is not None:
            self.at += size
            return
        start = self.at
        self.skip_strings(count, key)
        _KNOWN.remember(key, count, self.file, start, self.at - start)

    def skip_strings(self, count: int, key: str) -> None:
        """Skip `count` strings; this loop dominates the time to read a new vocabulary."""
        unpack: Callable[[bytes, int], tuple[int]] = U64.unpack_from
        while count:
            self.need(8, key)
            if self.at + 8 > self.start + len(self.piece):
                self.load(LONG_PIECE)
            piece, at = self.piece, self.at - self.start
            last = len(piece) - 8
            if last < 0:
                self.refuse(f"ends within {key}: it shrank while it was being read")
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
        for index, (name, shape, kind, offset) in enumerate(found):
            if offset != expected:
                self.refuse(f"tensor {name} is at offset {offset:,} of the data, expected at {expected:,}")
            found[index] = TensorInfo(name, shape, kind, data + expected)
            expected += found[index].num_bytes
            if data + expected > self.size:
                self.refuse(
                    f"is truncated: tensor {name} ({index + 1:,} of {num_tensors:,}) ends at byte "
                    f"{data + expected:,}, but the file has only {self.size:,}; get the whole file"
                )
            expected = -(-expected // alignment) * alignment
        return tuple(found)

    def tensor(self, index: int) -> TensorInfo:
        """Read one tensor info, its offset still relative to the start of the data."""
        raw = self.ahead(_LONGEST_TENSOR)
        try:
            length = U64.unpack_from(raw)[0]
            if length > MAX_NAME:
                self.refuse(f"the name of tensor {index:,} is {length:,} bytes long; the limit is {MAX_NAME}")
            name = raw[8 : 8 + length].decode("utf-8", "replace")
            num_dims = U32.unpack_from(raw, 8 + length)[0]
            if num_dims > MAX_DIMS:
                self.refuse(f"tensor {name!r} has {num_dims:,} dimensions; the limit is {MAX_DIMS}")
            *shape, number, offset = _TENSORS[num_dims].unpack_from(raw, 12 + length)
        except struct.error:
            self.need(len(raw) + 1, f"tensor {index:,}")
            self.refuse(f"ends within tensor {index:,}: it shrank while it was being read")
        self.at += 12 + length + _TENSORS[num_dims].size
        if number not in TYPES_BY_NUMBER:
            self.refuse(f"tensor {name!r} has the unknown type {number:,}")
        tensor = TensorInfo(name, tuple(shape), TYPES_BY_NUMBER[number], offset)
        if max((*shape, tensor.num_values)) > _MAX_ELEMENTS:
            self.refuse(f"tensor {name!r} has the impossible shape {tensor.shape}")
        row = shape[0] if shape else 1
        if row % tensor.type.block:
            self.refuse(
                f"tensor {name!r} has rows of {row:,} values, not a multiple of {tensor.type.name}'s block "
                f"of {tensor.type.block}"
            )
        return tensor
