"""Page cache control: measures how much of a file is resident, evicts or preloads it for a cold or a warm load."""

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

_BLOCK = 8 << 20


def resident_share(path: str | Path) -> float:
    """Return the share of the file's pages that are resident in memory, 0 to 1, as reported by mincore(2).

    NaN where the system does not report it: where the caller neither owns the file nor may write it, Linux reports
    every page as resident. An empty file counts as resident.
    """
    path = Path(path)
    size = path.stat().st_size
    if size == 0:
        return 1.0
    if not (os.access(path, os.W_OK) or path.stat().st_uid == os.geteuid()):
        return float("nan")
    pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    with _mapped(path) as address:
        if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data)):
            return float("nan")
    return float(np.mean(pages & 1))


def resident_share_of(paths: Iterable[Path]) -> float:
    """Return the resident share of several files together, such as those of a split model."""
    sizes = {path: path.stat().st_size for path in paths}
    return sum(size * resident_share(path) for path, size in sizes.items()) / max(sum(sizes.values()), 1)


def drop(path: str | Path) -> None:
    """Request eviction of the file's pages after syncing them to disk; pages that a process has mapped stay.

    Does nothing on systems without posix_fadvise(2). `resident_share` measures the effect.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    with Path(path).open("rb") as file:
        with contextlib.suppress(OSError):  # read-only disk
            os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(path: str | Path) -> None:
    """Read the file from start to end, so that its pages are in memory as far as they fit."""
    buffer = bytearray(_BLOCK)
    with Path(path).open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


@contextmanager
def _mapped(path: Path) -> Iterator[int]:
    """Map the file without reading it; yield its address in memory."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        address = view.ctypes.data
        del view
        yield address
