"""Lines of a batch's input: read with bounds, each a request or the error that answers it."""

import codecs
import hashlib
from collections.abc import Callable, Iterator
from typing import Annotated, BinaryIO, Literal, NamedTuple

import msgspec

from engine.api.openai.errors import ApiError, refusal
from engine.api.openai.guard import BODY
from engine.api.openai.requests import Endpoint, decoded

MOST_REQUESTS = 50_000
MOST_LINES = 2 * MOST_REQUESTS
"""Blank lines included."""
LONGEST_ID = 512
_SKIPPED = 1 << 20


class BatchLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a batch's input. custom_id: its sender's name for it; body: as the endpoint takes it."""

    custom_id: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_ID)]
    method: Literal["POST"]
    url: str
    body: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]


class _Named(msgspec.Struct, frozen=True):
    custom_id: str = ""


class Asked(NamedTuple):
    """A line: its number from 1, its id where it has one, and the body of its request or why it is none."""

    number: int
    custom_id: str | None
    body: bytes = b""
    error: ApiError | None = None


def counted_requests(file: BinaryIO) -> int:
    """Return the number of requests in a file. Raises ApiError for none and for too many."""
    num_requests = number = 0
    for number, _ in _lines(file):
        num_requests += 1
        if num_requests > MOST_REQUESTS or number > MOST_LINES:
            break
    if not num_requests:
        raise refusal(
            "The input file has no requests: it must have one a line, as JSON.", "input_file_id", "empty_file"
        )
    if num_requests > MOST_REQUESTS or number > MOST_LINES:
        text = f"The input file has more than {MOST_REQUESTS:,} requests: split it into several."
        raise refusal(text, "input_file_id", "too_many_requests")
    return num_requests


def asked_of(file: BinaryIO, endpoint: Endpoint, is_answered: Callable[[int], bool]) -> Iterator[Asked]:
    """Yield the lines of a file that are not answered, those that are wrong with an error."""
    ids = set[bytes]()
    for number, line in _lines(file):
        asked = _asked(number, line, endpoint)
        if asked.custom_id is not None:
            key = hashlib.blake2b(asked.custom_id.encode(), digest_size=16).digest()
            if key in ids and asked.error is None:
                text = f"line {number:,}: custom_id is that of an earlier line, which is answered in its place"
                asked = asked._replace(error=refusal(text, "custom_id", "duplicate_custom_id"))
            ids.add(key)
        if not is_answered(number):
            yield asked


def _asked(number: int, line: bytes | None, endpoint: Endpoint) -> Asked:
    if line is None:
        text = f"line {number:,}: has more than {BODY.most_bytes:,} bytes"
        return Asked(number, None, error=ApiError(413, text, code="body_too_large"))
    custom_id: str | None = None
    try:
        custom_id = decoded(line, _Named).custom_id[:LONGEST_ID] or None
        given = decoded(line, BatchLine)
        if given.url != endpoint:
            raise refusal(f"url: must be {endpoint}, the endpoint of the batch", "url")
        if not bytes(given.body).lstrip().startswith(b"{"):
            raise refusal("body: must be an object", "body")
        return Asked(number, custom_id, bytes(given.body))
    except ApiError as error:
        text = f"line {number:,}: {error}"
        return Asked(number, custom_id, error=ApiError(400, text, param=error.param, code=error.code or "invalid_line"))


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Yield number and content of each line that is not blank; None for the content of one that is too long."""
    number = 0
    while line := file.readline(BODY.most_bytes + 1):
        number += 1
        is_long = len(line) > BODY.most_bytes
        end = line
        while is_long and end and not end.endswith(b"\n"):
            end = file.readline(_SKIPPED)
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if is_long:
            yield number, None
        elif line.strip():
            yield number, line
