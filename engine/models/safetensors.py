"""Header parser of safetensors files, for untrusted files: bounded in size, every fault a ModelError.

Format: 8 bytes with the length of the table, the table as JSON, the tensors (github.com/huggingface/safetensors).
"""

import math
from pathlib import Path
from typing import Annotated, Any

import msgspec

from engine.errors import ModelError
from engine.files import decoded_json, open_regular
from engine.models.ggml import TYPES_BY_NAME
from engine.models.header import TensorInfo

MOST_TABLE_BYTES = 64 << 20
MOST_TENSORS = 1 << 17
_LENGTH_BYTES = 8
_TYPES = {name: TYPES_BY_NAME[name] for name in ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8")}
"""Tensor types that ggml has too, by their names in the table."""

_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class _Entry(msgspec.Struct):
    dtype: str
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=8)]
    data_offsets: tuple[_Size, _Size]


def read_tensors(path: Path) -> tuple[TensorInfo, ...]:
    """Return the tensors of a file in the order of their data.

    Raises ModelError for a file that cannot be read, is damaged or truncated, and for types other than floats and
    integers, which quantised weights have.
    """
    try:
        size = path.stat().st_size
        with open_regular(path) as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if length > min(size, MOST_TABLE_BYTES):
                raise ValueError("its table of tensors is too long")
            table = decoded_json(file.read(length), dict[str, Any])
        table.pop("__metadata__", None)
        if len(table) > MOST_TENSORS:
            raise ValueError(f"it has more than {MOST_TENSORS:,} tensors")
        entries = msgspec.convert(table, dict[str, _Entry])
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: is not a safetensors file, or is damaged ({error}): download it again") from error
    start = _LENGTH_BYTES + length
    found = sorted((_tensor(path, name, entry, start) for name, entry in entries.items()), key=lambda each: each.offset)
    end = start
    for tensor in found:
        if tensor.offset != end:
            raise ModelError(f"{path}: {tensor.name[:200]} does not begin where the tensor before it ends")
        end += tensor.num_bytes
    if end != size:
        raise ModelError(f"{path}: has {size:,} bytes, but its table of tensors gives {end:,}: download it again")
    return tuple(found)


def _tensor(path: Path, name: str, entry: _Entry, start: int) -> TensorInfo:
    kind = _TYPES.get(entry.dtype)
    if kind is None:
        raise ModelError(
            f"{path}: {name[:200]} has the type {entry.dtype[:20]!r}; weights can be run as {', '.join(_TYPES)}"
        )
    first, last = entry.data_offsets
    if last - first != kind.size_of(math.prod(entry.shape)):
        raise ModelError(f"{path}: {name[:200]} has {last - first:,} bytes, which does not match its shape")
    return TensorInfo(name, entry.shape[::-1], kind, start + first)
