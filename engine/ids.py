"""Ids: UUIDs by time, new for each job, and UUIDs derived from content."""

import hashlib
import os
import re
import time
import uuid

from engine.errors import ConfigError, quoted

_UUIDV7 = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def new_id() -> str:
    """Return a new UUIDv7 (RFC 9562, 5.7): 48 bits of milliseconds, version, 74 random bits; sorts by time.

    A clock set to before 1970 counts as 1970, one beyond the year 10889 as that.
    """
    milliseconds = min(max(time.time_ns() // 1_000_000, 0), (1 << 48) - 1)
    random = int.from_bytes(os.urandom(10), "big")
    value = milliseconds << 80 | 0x7 << 76 | (random >> 68 & 0xFFF) << 64 | 0b10 << 62 | random & (1 << 62) - 1
    digits = f"{value:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def checked_id(id: object) -> str:
    """Return the id given to a job. Raises ConfigError unless it is a UUIDv7 as `new_id` writes it."""
    if not (isinstance(id, str) and _UUIDV7.fullmatch(id)):
        raise ConfigError(f"job_id = {quoted(id)}: must be a UUIDv7 in lower case")
    return id


def content_id(content: bytes) -> str:
    """Return a version 8 UUID (RFC 9562) as text, whose 122 free bits come from the content's SHA-256."""
    digest = bytearray(hashlib.sha256(content).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(digest)))
