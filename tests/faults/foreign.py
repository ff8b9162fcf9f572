"""Files of kinds that the workbench reads, made here: right ones, to be broken, and ones that are wrong on purpose."""

import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from engine.history import History, TrialRecord, export_history, run_bytes
from engine.history.trial_file import trial_bytes
from engine.models.library import embedded_model
from tests.engine.history.run_maker import make_run
from tests.engine.history.trial_maker import make_steps, make_trial
from tests.faults.world import CANARY

MARKUP = (
    f'<img src=x data-canary={CANARY} onerror="window.canary=1;alert(1)">',
    f'<script data-canary={CANARY}>window.canary=1;alert(1)</script>',
    f'<svg data-canary={CANARY} onload="window.canary=1"></svg>', "[x](javascript:window.canary=1)",
    f"![x](x){{onerror=window.canary=1}}<a data-canary={CANARY} href='javascript:alert(1)'>x</a>",
    "${window.canary=1}{{window.canary=1}}", "$\\href{javascript:alert(1)}{x}$",
)  # fmt: skip
NASTY = (
    "\u202eevil\u2066", "a\0b", "\x1b[31m", "\ud7ff\ufffe", "'; DROP TABLE trials; --", "=cmd|' /C calc'!A0", "../" * 9,
    "9" * 400, "NaN", "1e999", "-0", "", " " * 5000, "é" * 3000, "%s%n{0}{x.__class__}", "[" * 3000, "None", "true",
)  # fmt: skip


def nasty(draw: random.Random) -> str:
    """A text that something may stumble over or run."""
    return "".join(draw.choices((*MARKUP, *NASTY), k=draw.randint(1, 3)))


def value(draw: random.Random, depth: int = 0) -> Any:
    """A value for JSON of a type that nobody expects there."""
    plain: tuple[Any, ...] = (None, True, -1, 0, 10**30, 1e308, -1e-300, nasty(draw), "", [], {})
    if depth > 2 or draw.random() < 0.6:
        return draw.choice(plain)
    inner = [value(draw, depth + 1) for _ in range(draw.randint(0, 4))]
    return inner if draw.random() < 0.5 else {nasty(draw)[:50]: one for one in inner}


def changed(draw: random.Random, plain: Any) -> Any:
    """The same with one value somewhere inside replaced, removed or added."""
    if isinstance(plain, dict) and plain and draw.random() < 0.9:
        key = draw.choice(sorted(plain))
        how = draw.random()
        if how < 0.1:
            return {name: one for name, one in plain.items() if name != key}
        if how < 0.2:
            return {**plain, nasty(draw)[:50]: value(draw)}
        return {**plain, key: changed(draw, plain[key])}
    if isinstance(plain, list) and plain and draw.random() < 0.9:
        place = draw.randrange(len(plain))
        return [*plain[:place], changed(draw, plain[place]), *plain[place + 1 :]]
    return value(draw)


def damaged(draw: random.Random, content: bytes) -> bytes:
    """The same bytes cut, flipped, doubled or with others in between."""
    place, size = draw.randrange(len(content) + 1), draw.choice((1, 4, 64, 4096))
    how = draw.choice(("cut", "flip", "insert", "repeat", "zero"))
    if how == "cut":
        return content[:place]
    middle = {
        "flip": bytes(byte ^ 1 << draw.randrange(8) for byte in content[place : place + size]),
        "insert": draw.randbytes(size) + content[place : place + size],
        "repeat": content[place : place + size] * draw.choice((2, 1000)),
        "zero": bytes(len(content[place : place + size])),
    }[how]
    return content[:place] + middle + content[place + size :]


# trials


def trial(**changes: Any) -> TrialRecord:
    """A trial of its own with a new id."""
    return make_trial(0, **changes, completion=replace(make_trial(0).completion, steps=_steps()))


def trial_with(**sampling: Any) -> tuple[str, bytes]:
    """Id and file of a trial whose sampling says this, though no workbench would have written it."""
    record = trial()
    plain = msgspec.msgpack.decode(trial_bytes(record))
    plain["sampling"].update(sampling)
    return record.id, msgspec.msgpack.encode(plain)


def nested_trial(depth: int) -> bytes:
    """A trial's file with lists in lists."""
    return b"\xde\x00\x01" + msgspec.msgpack.encode("id") + b"\x91" * depth + b"\xc0"


@cache
def _steps() -> Any:
    return make_steps(6, 8)


# archives and tables


@cache
def archive_members() -> dict[str, bytes]:
    """An archive with two runs and two trials, member by member."""
    with TemporaryDirectory() as folder, History.open(Path(folder, "history.duckdb")) as history:
        for _ in range(2):
            history.runs.keep(make_run(30))
            history.record(make_trial(6)).result()
        file = io.BytesIO()
        export_history(history, file)
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of these members."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        for name, one in members.items():
            archive.writestr(name, one)
    return content.getvalue()


def run_file() -> bytes:
    """A run of this workbench as a file."""
    return run_bytes(make_run(30))


def table(columns: dict[str, Any]) -> bytes:
    """A Parquet file of these columns."""
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


@cache
def label_bomb(num_rows: int = 4000, num_bytes: int = 1 << 20) -> bytes:
    """A small Parquet file whose one long label stands in every row."""
    label = pa.DictionaryArray.from_arrays(pa.array([0] * num_rows, pa.int32()), pa.array(["x" * num_bytes]))
    return table({"label": label, "n_prompt": [1] * num_rows, "tok_per_s": [1.0] * num_rows})


@cache
def zip_bomb(member: str, num_bytes: int = 1 << 27) -> bytes:
    """An archive of which one member unpacks to nothing but zeros."""
    return packed({**archive_members(), member: bytes(num_bytes)})


# models


@cache
def story() -> bytes:
    """The model that ships."""
    return embedded_model().read_bytes()


def story_with(key: str, text: str) -> bytes:
    """The model that ships with one more text among its keys, such as a chat template."""
    content = story()
    num_keys = struct.unpack_from("<Q", content, 16)[0]
    keys_end, infos_end = _ends(content)
    entry = _text(key) + struct.pack("<I", 8) + _text(text)
    head = content[:16] + struct.pack("<Q", num_keys + 1) + content[24:keys_end] + entry + content[keys_end:infos_end]
    return head + bytes(-len(head) % 32) + content[infos_end + -infos_end % 32 :]


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


@cache
def _ends(content: bytes) -> tuple[int, int]:
    """Where the keys and where the descriptions of the tensors end; GGUF's own layout."""
    num_tensors, num_keys = struct.unpack_from("<QQ", content, 8)
    place = 24
    for _ in range(num_keys):
        place = _after_text(content, place)
        kind = struct.unpack_from("<I", content, place)[0]
        place = _after_value(content, place + 4, kind)
    keys_end = place
    for _ in range(num_tensors):
        place = _after_text(content, place)
        num_dimensions = struct.unpack_from("<I", content, place)[0]
        place += 4 + 8 * num_dimensions + 12
    return keys_end, place


SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def _after_text(content: bytes, place: int) -> int:
    return place + 8 + int(struct.unpack_from("<Q", content, place)[0])


def _after_value(content: bytes, place: int, kind: int) -> int:
    if kind == 8:
        return _after_text(content, place)
    if kind != 9:
        return place + SIZES[kind]
    inner, length = struct.unpack_from("<IQ", content, place)
    place += 12
    if inner in SIZES:
        return place + int(length) * SIZES[inner]
    for _ in range(length):
        place = _after_value(content, place, inner)
    return place


def json_changed(draw: random.Random, name: str, content: bytes) -> bytes:
    """A member of an archive, JSON or a JSON value a line, with something somewhere in it changed."""
    lines = content.splitlines() if name.endswith(".jsonl") else [content]
    place = draw.randrange(len(lines)) if lines else 0
    lines[place : place + 1] = [
        json.dumps(changed(draw, json.loads(line))).encode() for line in lines[place : place + 1]
    ]
    return b"\n".join([*lines, b""]) if lines else json.dumps(value(draw)).encode()


Maker = Callable[[random.Random], bytes]
