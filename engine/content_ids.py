"""Content ids: UUIDs derived from content, so that content imported twice gets the same id."""

import hashlib
import uuid


def content_id(content: bytes) -> str:
    """Return a version 8 UUID (RFC 9562) as text, whose 122 free bits come from the content's SHA-256."""
    digest = bytearray(hashlib.sha256(content).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(digest)))
