"""Replies of /v1/embeddings, read into vectors: as many as texts were sent, of one dimension, finite."""

import base64
import binascii
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from engine.backends.sent import decoded
from engine.errors import ServerFailed
from engine.specs import MAX_ID
from engine.step_parts import Floats

MOST_TEXTS = 64
"""Texts of one request."""
MOST_DIM = 16_384
MOST_NAME = 300
_FLOAT_BYTES = 4
_MOST_BASE64 = -(-MOST_DIM * _FLOAT_BYTES // 3) * 4

_Numbers = Annotated[list[float], msgspec.Meta(max_length=MOST_DIM)]
_Base64 = Annotated[str, msgspec.Meta(max_length=_MOST_BASE64)]


class _Entry(msgspec.Struct, gc=False):
    index: Annotated[int, msgspec.Meta(ge=0, lt=MOST_TEXTS)]
    embedding: _Numbers | _Base64


class _Reply(msgspec.Struct, gc=False):
    data: Annotated[list[_Entry], msgspec.Meta(max_length=MOST_TEXTS)]
    model: object = None
    usage: object = None


_DECODER = msgspec.json.Decoder(_Reply)


class Reply(NamedTuple):
    """Vectors in the order of the texts, float32 (n, dim), as the server sent them.

    num_tokens: of the texts, None where the server does not report it. model: its name for the model, "" likewise.
    """

    vectors: Floats
    num_tokens: int | None
    model: str


def reply_of(content: bytes, num_texts: int, dim: int | None = None) -> Reply:
    """Read a reply to `num_texts` texts. dim: of the vectors, None where it is not known yet.

    Raises ServerFailed where it is not what the API says: vectors are missing or sent twice, differ in dimension, or
    have numbers that are not finite in float32.
    """
    reply = decoded(content, _DECODER)
    if len(reply.data) != num_texts:
        raise ServerFailed(f"the server sent {len(reply.data):,} vectors for {num_texts:,} texts")
    if {entry.index for entry in reply.data} != set(range(num_texts)):
        raise ServerFailed("the server sent the vector of a text twice, and none of another one")
    rows = [_row(entry.embedding) for entry in sorted(reply.data, key=lambda entry: entry.index)]
    sizes = {len(row) for row in rows} | ({dim} if dim is not None else set())
    if len(sizes) != 1 or 0 in sizes:
        two_sizes = " and ".join(f"{size:,}" for size in sorted(sizes)[:2])
        raise ServerFailed(f"the server sent vectors of {two_sizes} numbers: all of one model have equally many")
    vectors = np.stack(rows)
    if not np.isfinite(vectors).all():
        raise ServerFailed("the server sent a vector with numbers that are not finite")
    return Reply(vectors, _num_tokens(reply.usage), _name(reply.model))


def unit_vectors(vectors: Floats) -> Floats:
    """Return vectors with length 1. Raises ServerFailed for one that is zero everywhere, which has no direction."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    if not (lengths > 0).all():
        raise ServerFailed("the server sent a vector of zeros, which has no direction: is one of the texts empty?")
    units: Floats = (vectors / lengths).astype(np.float32)
    return units


def _row(sent: list[float] | str) -> Floats:
    with np.errstate(over="ignore"):  # what float32 does not hold is infinite, and refused as such
        if not isinstance(sent, str):
            return np.array(sent, np.float64).astype(np.float32)
    try:
        raw = base64.b64decode(sent, validate=True)
        return np.frombuffer(raw, "<f4").astype(np.float32)
    except (binascii.Error, ValueError):
        raise ServerFailed("the server sent a vector that is neither numbers nor float32 in base64") from None


def _num_tokens(usage: object) -> int | None:
    given = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return given if type(given) is int and 0 < given <= MAX_ID else None


def _name(given: object) -> str:
    return given if isinstance(given, str) and len(given) <= MOST_NAME and given.isprintable() else ""
