"""Ids made of what something is, so that the same content brought twice is one thing."""

import hashlib
import uuid


def content_id(content: bytes) -> str:
    """A UUID of version 8 (RFC 9562) as text: the first 122 free bits of the content's SHA-256."""
    digest = bytearray(hashlib.sha256(content).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(digest)))
