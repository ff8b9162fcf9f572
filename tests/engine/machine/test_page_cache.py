"""Page cache: warmed, dropped, and the share of a file that it holds."""

import mmap
import os
from pathlib import Path

import psutil
import pytest

from engine.machine import page_cache

SIZE = 4 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """File whose pages can be evicted: on a disk, not on a file system in memory."""
    path = tmp_path / "weights"
    with path.open("wb") as opened:
        opened.write(os.urandom(SIZE))
        os.fsync(opened.fileno())
    mounts = [part for part in psutil.disk_partitions(all=True) if path.is_relative_to(part.mountpoint)]
    if max(mounts, key=lambda part: len(part.mountpoint)).fstype in ("tmpfs", "ramfs"):
        pytest.skip("the temporary folder lies in memory")
    return path


def test_dropped_then_warm(file: Path) -> None:
    page_cache.drop(file)
    assert page_cache.resident_share(file) == 0
    page_cache.warm(file)
    assert page_cache.resident_share(file) == 1


def test_a_part_is_a_share(file: Path) -> None:
    page_cache.drop(file)
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        opened.read(SIZE // 4)
    assert page_cache.resident_share(file) == pytest.approx(0.25, abs=0.05)


def test_pages_that_a_process_has_mapped_stay(file: Path) -> None:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) > 0
        page_cache.drop(file)
        assert page_cache.resident_share(file) == 1


def test_an_empty_file_is_resident(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    assert page_cache.resident_share(path) == 1


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    for ask in (page_cache.resident_share, page_cache.drop, page_cache.warm):
        with pytest.raises(FileNotFoundError):
            ask(tmp_path / "none")
