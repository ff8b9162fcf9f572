"""Sequential reader of an untrusted file in pieces: limits how far it is read, and reports truncation."""

import struct
from io import FileIO
from pathlib import Path
from typing import NoReturn

from engine.errors import ModelError
from engine.models.budget import LIMITS, Budget

MAX_HEADER = 128 << 20
PIECE, LONG_PIECE = 1 << 16, 1 << 20
U32, U64 = struct.Struct("<I"), struct.Struct("<Q")


class Pieces:
    """Reader with a position in the file and the piece of it that is in memory."""

    def __init__(self, path: Path, file: FileIO, size: int, budget: Budget) -> None:
        self.path = path
        self.budget = budget
        self.file = file
        self.size = size
        self.end = min(size, MAX_HEADER)
        self.piece = b""
        self.start = 0
        self.at = 0

    def refuse(self, reason: str) -> NoReturn:
        """Raise ModelError with the file's name and the reason."""
        raise ModelError(f"{self.path}: {reason}")

    def spend(self, what: str, count: int) -> None:
        """Count against the model's budget; refuse the file where it is exceeded."""
        if not self.budget.spend(what, count):
            self.refuse(f"has more than {LIMITS[what]:,} {what} in its header, which no model needs")

    def take(self, count: int, what: str) -> bytes:
        """Read the next `count` bytes; more than a piece only for the chat template."""
        self.need(count, what)
        first = self.at - self.start
        if first + count > len(self.piece):
            self.load(max(count, PIECE))
            first = 0
            if len(self.piece) < count:
                self.refuse(f"ends within {what}: it shrank while it was being read")
        self.at += count
        return self.piece[first : first + count]

    def ahead(self, count: int) -> bytes:
        """Return the next `count` bytes without advancing; fewer at the end of the readable range."""
        first = self.at - self.start
        if first + count > len(self.piece):
            self.load(PIECE)
            first = 0
        return self.piece[first : first + count]

    def need(self, count: int, what: str) -> None:
        """Refuse the file unless `count` more bytes are within the readable range."""
        if count <= self.end - self.at:
            return
        if self.size > MAX_HEADER:
            self.refuse(f"has a header of more than {MAX_HEADER >> 20} MiB, at {what}")
        self.refuse(
            f"is truncated: {what} needs {count:,} bytes at position {self.at:,}, but the file has only {self.size:,}"
        )

    def load(self, count: int) -> None:
        """Load the next `count` bytes as the piece in memory."""
        self.file.seek(self.at)
        self.piece = self.file.read(min(count, self.end - self.at))
        self.start = self.at

    def number(self, kind: struct.Struct, what: str) -> int:
        """Read the next number."""
        value: int = kind.unpack(self.take(kind.size, what))[0]
        return value

    def text(self, limit: int, what: str) -> str:
        """Read a string of at most `limit` bytes."""
        length = self.number(U64, what)
        if length > limit:
            self.refuse(f"{what} is {length:,} bytes long; the limit is {limit:,}")
        self.spend("bytes of text", length)
        return self.take(length, what).decode("utf-8", "replace")
