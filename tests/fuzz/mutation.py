"""Changes of valid input: of its bytes, of the values of JSON and msgpack in it, of the members of a zip."""

import io
import json
import random
import zipfile
from collections.abc import Callable
from typing import Any

import msgspec

WRONG: list[Any] = [
    None, True, False, 0, -1, 1, 255, 1 << 31, 1 << 53, 1 << 63, 10**30, -(1 << 63), 0.5, -0.0, 1e-300, 1e308, "", "0",
    "x", "x" * 5_000, "\0", "\ud7ff", "../../etc/passwd", "NaN", "-inf", "9" * 400, [], {}, [[]], [{}], {"a": []},
]  # fmt: skip
PIECES = [
    b"", b"\0", b"\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"'", b"''", b'"', b"\\", b"(", b"[",
    b"{", b"\n", b"\r\n", b"\t", b" " * 200, b"\n" * 200, b"9" * 300, b"-1", b"0", b"1e999", b"nan", b"inf", b",",
    b";", b"%", "\u2028".encode(), "\u00b2".encode(), "\u0663".encode(), "\U0001f469\u200d".encode(), b"\xed\xa0\x80",
    b"#", b"|", b"/", b"..", b"[" * 300, b"{\"a\":" * 300,
]  # fmt: skip
TOO_DEEP = 5_000
MOST_CHANGES, MOST_BYTES = 4, 4 << 20


def mutated(seeds: list[bytes], drawn: random.Random) -> bytes:
    """One of the seeds, changed in up to four places, in the form that it has or only as bytes."""
    content = drawn.choice(seeds)
    if drawn.random() < 0.02:
        return content
    change = _change_of(content) if drawn.random() < 0.6 else None
    changed = change(content, drawn) if change is not None else _of_bytes(content, drawn, seeds)
    return changed[:MOST_BYTES]


def _change_of(content: bytes) -> Callable[[bytes, random.Random], bytes] | None:
    if content.startswith(b"PK"):
        return _of_zip
    if content[:1] in (b"{", b"["):
        return _of_json
    if content[:1] == b"\xde":
        return _of_msgpack
    return None


def _of_bytes(content: bytes, drawn: random.Random, seeds: list[bytes]) -> bytes:
    changed = bytearray(content)
    for _ in range(drawn.randint(1, MOST_CHANGES)):
        start = drawn.randrange(len(changed) + 1)
        end = min(len(changed), start + drawn.choice((0, 1, 1, 2, 4, 8, 64, 1_000)))
        match drawn.randrange(7):
            case 0:
                changed[start:end] = drawn.choice(PIECES)
            case 1:
                changed[start:start] = drawn.choice(PIECES) * drawn.choice((1, 2, 50))
            case 2:
                changed[start:end] = bytes(changed[start:end]) * drawn.choice((2, 3, 500))
            case 3:
                del changed[start:end]
            case 4:
                del changed[start:]
            case 5:
                other = drawn.choice(seeds)
                at = drawn.randrange(len(other) + 1)
                changed[start:end] = other[at : at + 300]
            case 6 if changed:
                for place in range(start, end):
                    changed[place] ^= 1 << drawn.randrange(8)
    return bytes(changed)


def _of_zip(content: bytes, drawn: random.Random) -> bytes:
    """Another content of some members, so that what is inside is reached; or other members."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for _ in range(drawn.randint(1, 2)):
        name = drawn.choice(sorted(members))
        match drawn.randrange(8):
            case 0:
                members.pop(name)
                members = members or {"x": b""}
            case 1:
                members[drawn.choice(("../x", "x" * 300, "y", name + "x"))] = b""
            case _:
                members[name] = _of_lines(members[name], drawn)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", drawn.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, value in members.items():
            archive.writestr(name, value)
    return file.getvalue()


def _of_lines(content: bytes, drawn: random.Random) -> bytes:
    """Another line of JSON, or other bytes."""
    lines = content.split(b"\n")
    number = drawn.randrange(len(lines))
    if content[:1] == b"{" and drawn.random() < 0.8:
        if len(lines) > 2 and drawn.random() < 0.8 and lines[number][:1] == b"{":
            lines[number] = _of_json(lines[number], drawn)
            return b"\n".join(lines)
        return _of_json(content, drawn)
    return _of_bytes(content, drawn, [content])


def _of_json(content: bytes, drawn: random.Random) -> bytes:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):  # an earlier change of the same input may have nested it too deeply
        return _of_bytes(content, drawn, [content])
    try:
        return json.dumps(_changed(value, drawn)).encode()
    except RecursionError:  # deeper than Python writes: as text
        return b"[" * TOO_DEEP + content + b"]" * TOO_DEEP


def _of_msgpack(content: bytes, drawn: random.Random) -> bytes:
    try:
        return msgspec.msgpack.encode(_changed(msgspec.msgpack.decode(content, strict=False), drawn))
    except (msgspec.MsgspecError, OverflowError, UnicodeEncodeError):
        return _of_bytes(content, drawn, [content])


def _changed(value: Any, drawn: random.Random) -> Any:
    for _ in range(drawn.randint(1, MOST_CHANGES)):
        value = _with_another(value, drawn)
    return value


def _with_another(value: Any, drawn: random.Random) -> Any:
    """The value with something of it replaced, removed, doubled or nested, at any depth."""
    if isinstance(value, dict) and value and drawn.random() < 0.9:
        name = drawn.choice(list(value))
        match drawn.randrange(8):
            case 0:
                return {key: each for key, each in value.items() if key != name}
            case 1:
                return {**value, drawn.choice(("x", "", "format", "\0")): drawn.choice(WRONG)}
            case _:
                return {**value, name: _with_another(value[name], drawn)}
    if isinstance(value, list) and value and drawn.random() < 0.8:
        place = drawn.randrange(len(value))
        match drawn.randrange(6):
            case 0:
                times = drawn.choice((0, 2, 200 if len(value) < 50 else 2))
                return value * times if _num_bytes(value) * times <= MOST_BYTES else value
            case _:
                return [*value[:place], _with_another(value[place], drawn), *value[place + 1 :]]
    if isinstance(value, bytes) and value and drawn.random() < 0.7:
        return _of_bytes(value, drawn, [value])
    if isinstance(value, str) and drawn.random() < 0.4:
        return _of_bytes(value.encode("utf-8", "replace"), drawn, [b"x"]).decode("utf-8", "replace")
    if drawn.random() < 0.03:
        return _nested(value, drawn.choice((50, 400)))
    return drawn.choice(WRONG)


def _num_bytes(value: Any) -> int:
    """About the size of a value written out: doubled lists within doubled lists would fill the memory."""
    num, left = 0, [value]
    while left and num <= MOST_BYTES:
        each = left.pop()
        num += len(each) if isinstance(each, str | bytes) else 8
        left += each if isinstance(each, list) else each.values() if isinstance(each, dict) else ()
    return num


def _nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value
