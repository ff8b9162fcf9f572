"""Archives that unpack to far more than they hold: refused before anything is written, and nothing outlives a kill."""

import io
import os
import random
import signal
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from engine.errors import HistoryError
from engine.exchange.foreign_files import read_arrival
from engine.history import History, import_archive
from engine.history.archives.members import MOST_BYTES, MOST_LINES_BYTES, MOST_RATIO
from engine.history.archives.parts import MANIFEST, MEMBERS, SAMPLES, STEPS
from tests.engine.history.test_run_file import packed, unpacked

_CENTRAL = b"PK\x01\x02"
_PACKED, _UNPACKED = 20, 24  # offsets of the sizes in an entry of a zip's central directory


class Usage(NamedTuple):
    """What shutil.disk_usage returns."""

    total: int
    used: int
    free: int


def declaring(archive: bytes, member: str, field: int, num_bytes: int) -> bytes:
    """Return the archive with another size of one member in its central directory."""
    content = bytearray(archive)
    place = content.rindex(member.encode())
    struct.pack_into("<I", content, content.rindex(_CENTRAL, 0, place) + field, num_bytes)
    return bytes(content)


def refused(history: History, folder: Path, archive: bytes) -> str:
    """Return the reason for which preview and import refuse an archive, and check that nothing was written."""
    with pytest.raises(HistoryError, match="Nothing was imported") as previewed:
        read_arrival("box.zip", archive)
    with pytest.raises(HistoryError, match="Nothing was imported") as imported:
        import_archive(history, archive, "box.zip")
    assert str(previewed.value) == str(imported.value)
    assert not list(folder.iterdir())
    return str(imported.value)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty folder for temporary files, which refuses every write."""

    def refuse(*_: object) -> None:
        raise AssertionError("a refused archive was written to the disk")

    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr("engine.history.archives.staging.StagingWriter.add", refuse)
    monkeypatch.setattr("engine.history.archives.staging.StagingWriter.add_rows", refuse)
    return folder


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("seed", range(3))
def test_a_member_of_nothing_but_repetition_is_refused_unwritten(
    sound: bytes, receiver: History, scratch: Path, member: str, seed: int
) -> None:
    draw = random.Random(f"{member} {seed}")
    filling = draw.choice((b"\0", b" ", b"\n", b"[]", draw.randbytes(3))) * draw.randrange(1 << 20, 1 << 22)
    bomb = packed({**unpacked(sound), member: unpacked(sound)[member][: draw.choice((0, 4, 100))] + filling})
    reason = refused(receiver, scratch, bomb)
    if member == MANIFEST:
        assert f"{MANIFEST} unpacks to" in reason
    else:
        assert f"{member} unpacks to" in reason and f"more than {MOST_RATIO} times its packed size" in reason


@pytest.mark.parametrize("member", MEMBERS)
def test_a_declared_size_above_the_limit_is_refused_unwritten(
    sound: bytes, receiver: History, scratch: Path, member: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = MOST_BYTES.get(member, MOST_LINES_BYTES)
    monkeypatch.setattr("engine.history.archives.members.MOST_RATIO", 1 << 40)
    monkeypatch.setattr("zipfile.ZipFile.infolist", lambda self: list(map(larger, self.filelist)))

    def larger(one: zipfile.ZipInfo) -> zipfile.ZipInfo:
        if one.filename == member:
            one.file_size = most + 1
        return one

    assert f"{member} unpacks to {most + 1:,} bytes; the limit is {most:,}" in refused(receiver, scratch, sound)


@pytest.mark.parametrize("member", [SAMPLES, STEPS, "runs.jsonl"])
def test_a_packed_size_that_is_a_lie_does_not_raise_the_limit(
    sound: bytes, receiver: History, scratch: Path, member: str
) -> None:
    bomb = packed({**unpacked(sound), member: bytes(1 << 24)})
    lie = declaring(bomb, member, _PACKED, 1 << 23)
    assert f"{member} does not fit into the file" in refused(receiver, scratch, lie)


def test_more_than_was_declared_is_not_read(sound: bytes, history: History) -> None:
    members = unpacked(sound)
    short = declaring(packed(members), STEPS, _UNPACKED, len(members[STEPS]) - 50)
    with pytest.raises(HistoryError, match="cannot be read"):
        import_archive(history, short)


@pytest.mark.parametrize("level", [1, 9])
def test_what_the_workbench_exports_is_below_the_limit_even_when_packed_again(
    sound: bytes, history: History, level: int
) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        for name, value in unpacked(sound).items():
            archive.writestr(name, value)
    with zipfile.ZipFile(content) as archive:
        for member in archive.infolist():
            assert member.file_size * 4 <= member.compress_size * MOST_RATIO
    assert import_archive(history, content.getvalue()).num_runs == 2


@pytest.mark.parametrize("free", [0, 1 << 20, 64 << 20])
def test_a_disk_without_room_is_not_filled(
    sound: bytes, history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _path: Usage(1 << 40, 0, free))
    with pytest.raises(HistoryError, match=r"not enough disk space .* free") as caught:
        import_archive(history, sound, "box.zip")
    assert "Nothing was imported" in str(caught.value)
    assert not history.find.runs().rows


READER = """
import sys, tempfile, time, zipfile
from pathlib import Path
from engine.history import parquet_tables
from engine.history.archives import members, reading, staging
from engine.exchange import parquet_runs

def wait(*_arguments, **_limits):
    print("unpacked", flush=True)
    time.sleep(600)

what, path, folder = sys.argv[1:]
members.ParquetTable = parquet_runs.ParquetTable = wait
if what == "archive":
    with staging.StagingWriter(Path(folder)) as writer:
        list(reading.stage_archive(path, writer))
else:
    with zipfile.ZipFile(path) as archive:
        parquet_runs.runs_of_parquet(archive.read("samples.parquet"), "samples.parquet")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGXCPU, signal.SIGTERM])
@pytest.mark.parametrize("what", ["archive", "parquet"])
def test_nothing_unpacked_outlives_a_killed_reader(
    sound: bytes, tmp_path: Path, what: str, number: signal.Signals
) -> None:
    box, folder, temporary = (tmp_path / name for name in ("box.zip", "staging", "temporary"))
    box.write_bytes(sound)
    folder.mkdir()
    temporary.mkdir()
    command = [sys.executable, "-c", READER, what, str(box), str(folder)]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(temporary)}, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None and reader.stdout.readline() == b"unpacked\n"
        reader.send_signal(number)
        assert reader.wait(60) == -number
    assert not list(temporary.iterdir())
    assert not {path.name for path in folder.iterdir()} - set(MEMBERS)  # staged lines, which the import's end removes
    assert STEPS not in {path.name for path in folder.iterdir()}
