"""Model library: the model files of this machine with memory, page cache and speed figures before loading."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import nan
from typing import Literal, NamedTuple

from engine.history import History
from engine.history.filters import Filter
from engine.machine.fingerprint import fingerprint, fingerprint_hash
from engine.machine.limits import Limits
from engine.machine.page_cache import resident_share
from engine.models import BrokenFile, LibraryEntry, MemoryEstimate, ModelFile, estimate
from engine.models.experts import weights_read
from engine.workbench.model_manager import default_spec

METRIC = "decode_per_s"

Provenance = Literal["measured here", "estimated"]


class Speed(NamedTuple):
    """Tokens per second of one sequence: the best measured on this machine, or bandwidth over bytes of weights read."""

    decode_per_s: float
    provenance: Provenance


@dataclass(frozen=True)
class LibraryModel:
    """A usable model. needed: memory estimate of a pool with default parameters.

    resident: share of its files in the page cache, 0 to 1, NaN where the system does not report it. speed: None where
    nothing was measured, and the machine's limits are unknown or the weights fit in its cache.
    """

    entry: LibraryEntry
    file: ModelFile
    needed: MemoryEstimate
    resident: float
    speed: Speed | None


def look_at(
    entries: Iterable[LibraryEntry], history: History | None = None, limits: Limits | None = None
) -> list[LibraryModel]:
    """Return the usable entries with their figures. Raises HistoryError where the history is unreadable."""
    usable = [(entry, entry.file) for entry in entries if not isinstance(entry.file, BrokenFile)]
    measured = _measured([file for _entry, file in usable], history) if history else {}
    return [
        LibraryModel(entry, file, estimate(file, default_spec(file)), in_memory(file), _speed(file, measured, limits))
        for entry, file in usable
    ]


def speed_of(file: ModelFile, history: History | None, limits: Limits | None) -> Speed | None:
    """Return the speed of one model, as `look_at` does; history None: not measured. Raises HistoryError."""
    return _speed(file, _measured([file], history) if history else {}, limits)


def in_memory(file: ModelFile) -> float:
    """Return the share of a model's files in the page cache, 0 to 1; NaN where the system does not report it."""
    with contextlib.suppress(OSError):
        sizes = [path.stat().st_size for path in file.files]
        shares = [resident_share(path) for path in file.files]
        return sum(size * share for size, share in zip(sizes, shares, strict=True)) / max(sum(sizes), 1)
    return nan


def _speed(file: ModelFile, measured: dict[str, float], limits: Limits | None) -> Speed | None:
    """Return the measured speed, else the roofline of decoding: each token reads the weights that it uses once.

    None where the weights fit in the cache: memory does not limit their speed.
    """
    if file.path.stem in measured:
        return Speed(measured[file.path.stem], "measured here")
    if limits is None or file.weights_bytes <= limits.cache_bytes:
        return None
    return Speed(limits.bandwidth_bytes_per_s / weights_read(file, 1), "estimated")


def _measured(files: Sequence[ModelFile], history: History) -> dict[str, float]:
    """Return the best decode speed of a sequence on this machine, by the file's name without its suffix."""
    machine = fingerprint_hash(fingerprint())
    known = set(history.find.models())
    found = {}
    for name in known.intersection(file.path.stem for file in files):
        best = history.find.cells(Filter(models=(name,), machines=(machine,)), limit=1, order=METRIC).rows
        if best and best[0][METRIC] is not None:
            found[name] = float(best[0][METRIC])
    return found
