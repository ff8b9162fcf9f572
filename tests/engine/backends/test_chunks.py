"""Content in chunks: whole however it is cut on its way, without what follows it; what is no chunk is refused."""

import random

import pytest

from engine.backends.chunks import MOST_LINE_BYTES, MOST_TRAILERS, Chunks
from engine.errors import ServerFailed

END = b"0\r\n\r\n"


def read(given: bytes, *, num_cuts: int = 0) -> tuple[bytes, bool, bytes]:
    """Content of what comes, cut at random places; whether it is over; and what is left."""
    places = sorted(random.Random(num_cuts).choices(range(len(given) + 1), k=num_cuts))
    chunks, came, content = Chunks(), bytearray(), b""
    for start, end in zip([0, *places], [*places, len(given)], strict=True):
        came += given[start:end]
        content += chunks.take(came)
    return content, chunks.is_over, bytes(came)


@pytest.mark.parametrize("num_cuts", range(40))
def test_content_is_whole_however_it_is_cut(num_cuts: int) -> None:
    draw = random.Random(num_cuts)
    parts = [
        draw.choice([b"\r\n", b"0\r\n", b"data: a\n\n", draw.randbytes(300)]) * draw.randint(1, 3) for _ in range(9)
    ]
    heads = [draw.choice([b"%x", b"%X", b"00%x", b"%x;name=value", b'%x ;a="b;c"']) % len(part) for part in parts]
    chunked = b"".join(head + b"\r\n" + part + b"\r\n" for head, part in zip(heads, parts, strict=True))
    trailers = b"Trailer: x\r\n" * draw.randint(0, 2)
    assert read(chunked + b"000\r\n" + trailers + b"\r\n" + b"HTTP/1.1", num_cuts=num_cuts) == (
        b"".join(parts),
        True,
        b"HTTP/1.1",
    )


@pytest.mark.parametrize(
    "given",
    [
        b"zz\r\nhello",
        b"-2\r\nhe\r\n",
        b"+2\r\nhe\r\n",
        b"0x2\r\nhe\r\n",
        b"1_0\r\n0123456789012345\r\n",
        b" 2\r\nhe\r\n",
        b"\r\n2\r\nhe\r\n",
        b"2\r\nhello\r\n" + END,
        b"2\nhe\r\n" + END,
        b"f" * 16 + b"\r\n",
        b"1" * MOST_LINE_BYTES,
        b"2;" + b"a" * MOST_LINE_BYTES + b"\r\nhe\r\n",
        b"0\r\n" + b"a: b\r\n" * (MOST_TRAILERS + 1) + b"\r\n",
    ],
)
def test_what_is_no_chunk_is_refused(given: bytes) -> None:
    with pytest.raises(ServerFailed):
        read(given)


def test_what_is_cut_is_not_over() -> None:
    assert read(b"5\r\nhel") == (b"hel", False, b"")
    assert read(b"3\r\nhel\r\n0\r\n") == (b"hel", False, b"")


@pytest.mark.parametrize("seed", range(20))
def test_content_that_is_not_taken_is_left_as_it_was(seed: int) -> None:
    draw = random.Random(seed)
    parts = [draw.randbytes(draw.randint(1, 30)) for _ in range(6)]
    given = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + END
    chunks, came, content = Chunks(), bytearray(), []

    def takes(part: bytes) -> bool:
        if does := draw.random() < 0.5:
            content.append(part)
        elif draw.random() < 0.5:
            raise ServerFailed("no")
        return does

    while given and not chunks.is_over:
        came, given = came + given[:4], given[4:]
        before = bytes(came)
        if not chunks.offer(came, takes):
            assert came == before and not chunks.is_over
            content.append(chunks.take(came))
    assert b"".join(content) == b"".join(parts) and chunks.is_over and not came + given
