"""Cache of string arrays skipped before: files of one model family hold the same vocabulary.

Skipping 150,000 strings one by one takes 20 ms, hashing their bytes 2 ms. Where a file's bytes have the hash of an
array that was skipped before, skipping them would end at the same position.
"""

import hashlib
from io import FileIO

FEWEST = 1_000
"""Minimum number of strings for which hashing pays off."""

MAX_KNOWN = 256
_PIECE = 1 << 18


class KnownArrays:
    """Cache of the latest array of each key and number of strings, as its size in bytes and SHA-256."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[int, bytes]] = {}

    def size_of(self, key: str, count: int, file: FileIO, at: int, limit: int) -> int | None:
        """Return the bytes of the array at `at` if it is the cached one and not longer than `limit`, else None."""
        size, digest = self._known.get((key, count), (0, b""))
        return size if 0 < size <= limit and _digest(file, at, size) == digest else None

    def remember(self, key: str, count: int, file: FileIO, at: int, size: int) -> None:
        """Cache the array at `at`, which was skipped and takes `size` bytes."""
        if count >= FEWEST:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key, count] = size, _digest(file, at, size)


def _digest(file: FileIO, at: int, size: int) -> bytes:
    """Return the SHA-256 of `size` bytes of the file; of fewer where it ends before."""
    found = hashlib.sha256()
    buffer = memoryview(bytearray(min(size, _PIECE)))
    file.seek(at)
    while size > 0 and (num_read := file.readinto(buffer[:size])):
        found.update(buffer[:num_read])
        size -= num_read
    return found.digest()
