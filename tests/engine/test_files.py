"""Files: bad names and endless input are refused with a reason; what is written appears complete, through links too."""

import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import EngineError, Pool
from engine.embedding.models import find_model
from engine.exchange.foreign_files import read_arrival
from engine.exchange.importer import Importer
from engine.files import (
    num_distinguishing,
    open_locked,
    open_partial,
    open_regular,
    read_regular,
    scratch_folder,
    write_private,
    write_whole,
    writing_whole,
)
from engine.history import History, refusals
from engine.models import model_hash, read_model
from engine.models.header_cache import HeaderCache
from engine.models.imatrix import read_imatrix
from engine.models.tokenizer import Tokenizer
from engine.settings import Settings
from engine.workbench.costing import read_price_file

HOLDER = """
import sys, time
from pathlib import Path
from engine.files import scratch_folder
with scratch_folder(Path(sys.argv[1]), sys.argv[2]) as folder:
    (folder / "large").write_bytes(bytes(1000))
    print(folder, flush=True)
    time.sleep(600)
"""
NAME = os.fsdecode(b"v\xe9lo.gguf")
REFUSED = r"v\\xe9lo.gguf: the name is not valid UTF-8; rename the file"


@pytest.fixture
def file(tmp_path: Path, story_model: Path) -> Path:
    path = tmp_path / NAME
    path.write_bytes(story_model.read_bytes())
    return path


@pytest.mark.parametrize("take", [Pool, Tokenizer, lambda file: find_model(str(file))], ids=["pool", "text", "embed"])
def test_a_model_is_refused(file: Path, take: Callable[[Path], object]) -> None:
    with pytest.raises(EngineError, match=REFUSED):
        take(file)


def test_an_import_is_refused_and_the_next_file_is_read(file: Path, tmp_path: Path) -> None:
    with History.open(tmp_path / "history.duckdb") as history, Importer(tmp_path) as importer:
        for _ in range(2):
            with pytest.raises(EngineError, match=REFUSED):
                importer.take_in(history, file.name, file)
            with pytest.raises(EngineError, match=REFUSED):
                importer.hand_over(file.name, file, tmp_path)


def test_a_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="UTF-8"):
        Settings.from_environment({"LOGITBENCH_HOME": str(tmp_path / os.fsdecode(b"h\xe9") / "home")})


@pytest.mark.parametrize("what", ["pipe", "device", "folder"])
def test_what_has_no_end_is_refused(tmp_path: Path, story_model: Path, what: str) -> None:
    path = tmp_path / "named"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(path)
    with pytest.raises(EngineError, match="not a regular file"):
        read_imatrix(path, read_model(story_model))
    with pytest.raises(EngineError, match="not a regular file"):
        read_price_file(path)
    with pytest.raises(EngineError, match="not a regular file"):
        read_arrival("named", path)


@pytest.mark.parametrize("num_bytes", [0, 1, (1 << 16) - 1, 1 << 16, 3_000_000])
def test_reading_a_file_takes_no_more_memory_than_it_has_bytes(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(num_bytes))
    tracemalloc.start()
    try:
        content = read_regular(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert content == path.read_bytes()
    assert peak < 2 * num_bytes + (1 << 18)
    assert read_regular(path, num_bytes) == content
    if num_bytes:
        with pytest.raises(OSError, match="it has more than"):
            read_regular(path, num_bytes - 1)


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 36)
    with pytest.raises(OSError, match=r"more than 1,000 bytes.*sparse"):
        read_regular(path, 1_000)
    with pytest.raises(EngineError, match="more than 4,194,304 bytes"):
        read_price_file(path)
    with pytest.raises(EngineError, match="more than 1,048,576 bytes"):
        Pool.from_profile(path)


@pytest.mark.parametrize("what", ["link", "broken link", "second name", "pipe", "device", "folder"])
def test_a_partial_file_is_none_that_leads_elsewhere(tmp_path: Path, what: str) -> None:
    path, other = tmp_path / "partial", tmp_path / "other"
    other.write_bytes(b"mine")
    match what:
        case "link":
            path.symlink_to(other)
        case "broken link":
            path.symlink_to(tmp_path / "nothing")
        case "second name":
            path.hardlink_to(other)
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
    with pytest.raises(OSError, match=r"partial"):
        open_partial(path)
    assert other.read_bytes() == b"mine" and not (tmp_path / "nothing").exists()


def test_a_partial_file_goes_on_where_it_was(tmp_path: Path) -> None:
    with open_partial(tmp_path / "partial") as file:
        file.write(b"one")
    with open_partial(tmp_path / "partial") as file:
        assert file.read() == b"one"
        file.write(b"two")
    assert (tmp_path / "partial").read_bytes() == b"onetwo"


def test_a_locked_file_is_locked_until_it_is_closed(tmp_path: Path) -> None:
    with open_locked(tmp_path / "partial") as file:
        file.write(b"one")
        with pytest.raises(BlockingIOError):
            open_locked(tmp_path / "partial")
    with open_locked(tmp_path / "partial") as file:
        assert file.read() == b"one"


def test_stores_of_this_program_that_are_pipes_count_as_absent(tmp_path: Path, story_model: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "inbox" / "refused").mkdir(parents=True)
    for name in ("models/headers.msgpack", "models/hashes.json", "inbox/refused/x.trial.reason.txt"):
        os.mkfifo(tmp_path / name)
    assert HeaderCache(tmp_path / "models" / "headers.msgpack").read(story_model).n_vocab > 0
    assert len(model_hash(story_model, tmp_path)) == 64
    assert refusals(tmp_path / "inbox")["x.trial"].startswith("the reason cannot be read")


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"before")
    link.symlink_to(target)
    write_whole(link, b"after")
    assert (link.is_symlink(), target.read_bytes()) == (True, b"after")
    assert sorted(tmp_path.iterdir()) == [link, target]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write_whole, args=(pipe, b"content"))
    writer.start()
    assert pipe.read_bytes() == b"content"
    writer.join()
    assert pipe.is_fifo()


def test_a_device_stays_a_device() -> None:
    write_whole(Path("/dev/null"), b"content")
    assert Path("/dev/null").is_char_device()


def test_what_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with pytest.raises(ValueError, match="in the middle"), writing_whole(path) as file:
        file.write(b"af")
        raise ValueError("in the middle")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_file_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_private(tmp_path / "x", b"old")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_private(tmp_path / "x", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("x", b"old")]


@pytest.mark.parametrize("name", ["export", "[a-z]*.db"])
def test_a_scratch_folder_is_removed_at_the_end_or_by_the_next_of_its_name(tmp_path: Path, name: str) -> None:
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path), name], stdout=subprocess.PIPE) for _ in range(2)
    ]
    killed = holders[0]
    try:
        folders = [Path(holder.stdout.readline().decode().strip()) for holder in holders if holder.stdout is not None]
        killed.kill()
        killed.wait(60)
        assert all((folder / "large").exists() for folder in folders)
        with scratch_folder(tmp_path, "other"):
            assert folders[0].exists()
        with scratch_folder(tmp_path, name) as own:
            assert sorted(tmp_path.iterdir()) == sorted([folders[1], own])
            assert own.stat().st_mode & 0o077 == 0
        assert list(tmp_path.iterdir()) == [folders[1]]
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()


def test_a_regular_file_is_read_in_blocking_mode(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with open_regular(tmp_path / "file") as file:
        assert os.get_blocking(file.fileno())
    with open_partial(tmp_path / "partial") as partial:
        assert os.get_blocking(partial.fileno())


PATHS = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(lambda parts: Path(*parts)), unique=True)


@given(PATHS)
def test_paths_are_distinguished_by_the_fewest_last_parts(paths: list[Path]) -> None:
    nums = num_distinguishing(paths)
    for path, num in zip(paths, nums, strict=True):
        with_end = {n: sum(other.parts[-n:] == path.parts[-n:] for other in paths) for n in range(1, num + 1)}
        assert all(with_end[n] > 1 for n in range(1, num))
        assert with_end[num] == 1 or num == len(path.parts)
