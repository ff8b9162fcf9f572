"""Chunked transfer coding: decodes the content of a response as it arrives, faster than a whole HTTP parser does."""

import re
from collections.abc import Callable
from contextlib import suppress

from engine.errors import ServerFailed

MOST_LINE_BYTES = 4 << 10
"""Longest line: the size of a chunk with its extensions, or a trailer field."""
MOST_TRAILERS = 100
_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\n]*)?")
_LINE_END = b"\r\n"


class Chunks:
    """Decoder of one response (RFC 9112, section 7.1). is_over: whether the last chunk and its trailers have come."""

    def __init__(self) -> None:
        self.is_over = False
        self._left = 0
        self._num_trailers = -1
        self._is_at_end = False

    def take(self, came: bytearray) -> bytes:
        """Consume the bytes that belong to this response, and return the content in them.

        Raises ServerFailed for malformed chunks.
        """
        parts = []
        while came and not self.is_over:
            if self._left:
                parts.append(part := bytes(came[: self._left]))
                self._left -= len(part)
                self._is_at_end = True
            else:
                end = came.find(_LINE_END, 0, MOST_LINE_BYTES)
                if end < 0:
                    if len(came) >= MOST_LINE_BYTES:
                        raise ServerFailed(f"the size of a chunk has more than {MOST_LINE_BYTES:,} bytes")
                    break
                self._read(part := bytes(came[: end + 2]))
            del came[: len(part)]
        return b"".join(parts)

    def offer(self, came: bytearray, takes: Callable[[bytes], bool]) -> bool:
        """Consume the bytes that have come if `takes` takes the content in them; return False, and change nothing,
        where it does not, at the end of the response, and for what fails: whoever reads it then finds the error.
        """
        state, before = vars(self).copy(), bytes(came)
        with suppress(Exception):
            content = self.take(came)
            if not self.is_over and (not content or takes(content)):
                return True
        vars(self).update(state)
        came[:] = before
        return False

    def _read(self, line: bytes) -> None:
        """Read a line: the end of a chunk, the size of the next one, or a trailer, which is passed over."""
        if self._is_at_end:
            self._is_at_end = False
            if line != _LINE_END:
                raise ServerFailed("a chunk is longer than its size")
        elif self._num_trailers >= 0:
            self.is_over, self._num_trailers = line == _LINE_END, self._num_trailers + 1
            if self._num_trailers > MOST_TRAILERS:
                raise ServerFailed(f"the content has more than {MOST_TRAILERS} trailers")
        elif (size := _SIZE.fullmatch(line, 0, len(line) - 2)) is None:
            raise ServerFailed("a chunk has no size")
        else:
            self._left = int(size[1], 16)
            self._num_trailers += not self._left
