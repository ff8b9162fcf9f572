"""Random tensors, generated directly as the quantised blocks of a file, without float weights.

A block's bytes are random within its format's rules (ggml-common.h). Its one scale is computed from the spread of
the integers that random bytes encode, so that the decoded weights have mean 0 and the requested standard deviation;
the sub-block scales of K-quants are random as well.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from engine.models.ggml import TensorType

_CHUNK = 4 << 20

Bytes = npt.NDArray[np.uint8]
_Generator = np.random.Generator


def _spread(count: int) -> float:
    """Return the standard deviation of a uniform draw from `count` consecutive integers."""
    return math.sqrt((count * count - 1) / 12)


_RMS_OF_6_BITS = math.sqrt(63 * 127 / 6)


def random_tensor(kind: TensorType, num_values: int, std: float, seed: list[int]) -> Iterator[Bytes]:
    """Yield the bytes of `num_values` random weights of standard deviation `std`, some megabytes at a time.

    The same seed gives the same bytes. Raises KeyError for a type that is not in `MAKERS`.
    """
    make = MAKERS[kind.name]
    generator = np.random.Generator(np.random.SFC64(seed))
    num_blocks = num_values // kind.block
    step = _CHUNK // kind.num_bytes
    for start in range(0, num_blocks, step):
        blocks = make(generator, min(step, num_blocks - start), std)
        assert blocks.nbytes % kind.num_bytes == 0
        yield blocks


def _random_bytes(generator: _Generator, rows: int, columns: int) -> Bytes:
    raw = np.frombuffer(generator.bytes(rows * columns), np.uint8)
    return raw.reshape(rows, columns).copy()


def _put_half(blocks: Bytes, column: int, value: float) -> None:
    """Write `value` as a half-precision number into every block, at byte `column`."""
    blocks[:, column : column + 2] = np.array([value], np.float16).view(np.uint8)


def _put_scales(blocks: Bytes, scale: float, middle: float) -> None:
    """Set each 6-bit minimum equal to its scale, and dmin to `middle` times d, so that the mean is 0."""
    _put_half(blocks, 0, scale)
    _put_half(blocks, 2, middle * scale)
    blocks[:, 8:12] = blocks[:, 4:8]
    blocks[:, 12:16] = (blocks[:, 12:16] & 0x0F) * 0x11


def _q4_k(generator: _Generator, num_blocks: int, std: float) -> Bytes:
    """Generate Q4_K: halves d and dmin, 12 bytes of eight 6-bit scales and minima, 256 values of 4 bits, 0 to 15."""
    blocks = _random_bytes(generator, num_blocks, 144)
    _put_scales(blocks, std / (_RMS_OF_6_BITS * _spread(16)), 7.5)
    return blocks


def _q5_k(generator: _Generator, num_blocks: int, std: float) -> Bytes:
    """Generate Q5_K: as Q4_K with 32 bytes of high bits, so 256 values of 5 bits, whose middle is 15.5."""
    blocks = _random_bytes(generator, num_blocks, 176)
    _put_scales(blocks, std / (_RMS_OF_6_BITS * _spread(32)), 15.5)
    return blocks


def _q6_k(generator: _Generator, num_blocks: int, std: float) -> Bytes:
    """Generate Q6_K: 256 values of 6 bits in 192 bytes, 16 signed scales of 8 bits, a half d."""
    blocks = _random_bytes(generator, num_blocks, 210)
    _put_half(blocks, 208, std / (_spread(256) * _spread(64)))
    return blocks


def _q8_0(generator: _Generator, num_blocks: int, std: float) -> Bytes:
    """Generate Q8_0: a half d, 32 signed values of 8 bits."""
    blocks = _random_bytes(generator, num_blocks, 34)
    _put_half(blocks, 0, std / _spread(256))
    return blocks


def _q4_0(generator: _Generator, num_blocks: int, std: float) -> Bytes:
    """Generate Q4_0: a half d, 32 values of 4 bits from -8 to 7."""
    return _signed(generator, num_blocks, 18, std / _spread(16))


def _q5_0(generator: _Generator, num_blocks: int, std: float) -> Bytes:
    """Generate Q5_0: a half d, 32 values of 5 bits from -16 to 15."""
    return _signed(generator, num_blocks, 22, std / _spread(32))


def _signed(generator: _Generator, num_blocks: int, num_bytes: int, scale: float) -> Bytes:
    """Generate blocks whose values have mean -1/2; the sign of d is random, so that the weights still have mean 0."""
    blocks = _random_bytes(generator, num_blocks, num_bytes)
    sign = blocks[:, 1] & 0x80
    _put_half(blocks, 0, scale)
    blocks[:, 1] |= sign
    return blocks


def _q5_1(generator: _Generator, num_blocks: int, std: float) -> Bytes:
    """Generate Q5_1: halves d and m, 32 values of 5 bits from 0 to 31; m is -15.5 d."""
    blocks = _random_bytes(generator, num_blocks, 24)
    scale = std / _spread(32)
    _put_half(blocks, 0, scale)
    _put_half(blocks, 2, -15.5 * scale)
    return blocks


def _f32(generator: _Generator, num_blocks: int, std: float) -> Bytes:
    return (generator.standard_normal(num_blocks, np.float32) * np.float32(std)).view(np.uint8)


def _f16(generator: _Generator, num_blocks: int, std: float) -> Bytes:
    return (generator.standard_normal(num_blocks, np.float32) * np.float32(std)).astype(np.float16).view(np.uint8)


MAKERS: dict[str, Callable[[_Generator, int, float], Bytes]] = {
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "F32": _f32,
    "F16": _f16,
}
