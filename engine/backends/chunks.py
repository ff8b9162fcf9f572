"""Chunked transfer coding: decodes the content of a response as it arrives, faster than a whole HTTP parser does."""

import re
from collections.abc import Callable

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
        content, num_bytes = self._read(came)
        del came[:num_bytes]
        return content

    def offer(self, came: bytearray, takes: Callable[[bytes], bool]) -> bool:
        """Consume the bytes that have come if `takes` takes the content in them; return False, and change nothing,
        where it does not, at the end of the response, and for what fails: whoever reads it then finds the error.
        """
        state = self.is_over, self._left, self._num_trailers, self._is_at_end
        try:
            content, num_bytes = self._read(came)
            if not self.is_over and (not content or takes(content)):
                del came[:num_bytes]
                return True
        except Exception:  # found again by whoever reads it
            pass
        self.is_over, self._left, self._num_trailers, self._is_at_end = state
        return False

    def _read(self, came: bytearray) -> tuple[bytes, int]:
        """Return the content in what came, and how many bytes of that were read."""
        parts, at = [], 0
        while at < len(came) and not self.is_over:
            if self._left:
                parts.append(part := bytes(came[at : at + self._left]))
                at += len(part)
                self._left -= len(part)
                self._is_at_end = True
            else:
                end = came.find(_LINE_END, at, at + MOST_LINE_BYTES)
                if end < 0:
                    if len(came) - at >= MOST_LINE_BYTES:
                        raise ServerFailed(f"the size of a chunk has more than {MOST_LINE_BYTES:,} bytes")
                    break
                self._read_line(came, at, end)
                at = end + len(_LINE_END)
        return b"".join(parts), at

    def _read_line(self, came: bytearray, start: int, end: int) -> None:
        """Read a line: the end of a chunk, the size of the next one, or a trailer, which is passed over."""
        if self._is_at_end:
            self._is_at_end = False
            if end > start:
                raise ServerFailed("a chunk is longer than its size")
        elif self._num_trailers >= 0:
            self.is_over, self._num_trailers = end == start, self._num_trailers + 1
            if self._num_trailers > MOST_TRAILERS:
                raise ServerFailed(f"the content has more than {MOST_TRAILERS} trailers")
        elif (size := _SIZE.fullmatch(came, start, end)) is None:
            raise ServerFailed("a chunk has no size")
        else:
            self._left = int(size[1], 16)
            self._num_trailers += not self._left
