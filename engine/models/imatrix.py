"""Importance matrices: weights of the columns of each tensor, as llama.cpp's llama-imatrix writes them.

Both of its formats are read (common/imatrix-loader.cpp): GGUF, and the older one of counted blocks. Only the positions
of the values are read, so that a file of any size takes milliseconds.
"""

import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from engine.errors import ModelError
from engine.files import open_regular
from engine.models.gguf import ModelFile
from engine.models.header import MAX_KEY, MAX_TENSORS, TensorInfo, read_header

_SUMS, _COUNTS = ".in_sum2", ".counts"
_INT = struct.Struct("<i")
_MAX_VALUES = 1 << 28
_MAX_PARTS = 1 << 12


class Importance(NamedTuple):
    """Importance values of one tensor: `num_values` 32-bit floats starting at byte `position` of the file.

    They are sums of squares, in equal parts, one per expert; `counts` has the number of tokens summed in each part.
    """

    name: str
    position: int
    num_values: int
    counts: tuple[float, ...]


def read_imatrix(path: Path, model: ModelFile) -> tuple[Importance, ...]:
    """Read the importances that `path` has for tensors of `model`.

    Raises ModelError where the file is not an importance matrix, is damaged, or belongs to another model.
    """
    try:
        with open_regular(path) as file:
            found = _read_gguf(path, file) if file.read(4) == b"GGUF" else _read_counted(path, file)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read ({error})") from error
    sizes = {tensor.name: _num_columns(tensor) for tensor in model.tensors}
    known = tuple(one for one in found if one.name in sizes)
    unfit = [one.name for one in known if one.num_values != sizes[one.name]]
    if unfit or not known:
        why = f"its {unfit[0]} has a different size" if unfit else "no tensor has the same name"
        raise ModelError(f"{path}: is not the importance matrix of {model.path.name}: {why}. Make one from this model.")
    return known


def _num_columns(tensor: TensorInfo) -> int:
    """Return the number of importance values of this tensor: the length of a row, for each expert."""
    num_rows = tensor.shape[1] if len(tensor.shape) > 1 else 1
    return tensor.num_values // num_rows if num_rows else 0


def _read_gguf(path: Path, file: BinaryIO) -> list[Importance]:
    tensors = {tensor.name: tensor for tensor in read_header(path).tensors}
    found = []
    for name, sums in tensors.items():
        counts = tensors.get(name.removesuffix(_SUMS) + _COUNTS)
        if not name.endswith(_SUMS) or counts is None:
            continue
        if (
            {sums.type.name, counts.type.name} != {"F32"}
            or not counts.num_values
            or sums.num_values % counts.num_values
        ):
            raise ModelError(f"{path}: {name} and its counts do not match; create the importance matrix again")
        file.seek(counts.offset)
        over = np.frombuffer(file.read(counts.num_bytes), "<f4").round().tolist()
        found.append(Importance(name.removesuffix(_SUMS), sums.offset, sums.num_values, tuple(over)))
    return found


def _read_counted(path: Path, file: BinaryIO) -> list[Importance]:
    """Read the older format: the number of entries, then for each name length, name, calls, value count and values."""
    size = path.stat().st_size
    file.seek(0)

    def number(high: int) -> int:
        raw = file.read(_INT.size)
        value: int = _INT.unpack(raw)[0] if len(raw) == _INT.size else -1
        if not 0 <= value <= high:
            raise ModelError(f"{path}: is not an importance matrix of llama.cpp, or is damaged")
        return value

    found = []
    for _ in range(number(MAX_TENSORS)):
        name = file.read(number(MAX_KEY)).decode("utf-8", "replace")
        num_calls, num_values = number((1 << 31) - 1), number(_MAX_VALUES)
        found.append(Importance(name, file.tell(), num_values, (float(num_calls or 1),)))
        if file.seek(4 * num_values, 1) > size:
            raise ModelError(f"{path}: is truncated within the values of {name!r}; get the whole file")
    return found
