"""Machine limits: memory read bandwidth and matrix-multiplication throughput, measured in a few seconds."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from engine.machine.cores import allowed_cores, num_cores
from engine.machine.fingerprint import fingerprint, fingerprint_hash
from engine.machine.memory import available_memory
from engine.validation import Spec

_TIMES_CACHE = 4
_SMALLEST_READ = 512 << 20
_MATRIX = 1024
_NUM_ROUNDS, _ROUND_S = 5, 0.1
_BARRIER_S = 60.0

Work = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Limits(Spec):
    """Limits of one machine, JSON-able by to_dict().

    bandwidth: pairs (number of threads, bytes per second that they read together), fewest threads first; flops:
    32-bit floating-point operations per second of all cores multiplying matrices in numpy's library; cache_bytes: size
    of the last-level caches of the allowed cores, 0 where the system does not report it; prefill: best prompt tokens
    per second, by engine.bench.measurement.ceiling.ceiling_key.
    """

    machine_hash: str
    num_cores: int
    cache_bytes: int
    bandwidth: tuple[tuple[int, float], ...]
    flops: float
    prefill: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bandwidth", tuple((int(num), float(rate)) for num, rate in self.bandwidth))

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """The highest bandwidth over all measured numbers of threads."""
        return max(rate for _num, rate in self.bandwidth)

    def with_prefill(self, key: str, per_s: float) -> Self:
        """Return a copy with one more best prefill rate."""
        return self.from_dict({**self.to_dict(), "prefill": {**self.prefill, key: per_s}})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; `Limits.from_dict` reads them back."""
        return {**super().to_dict(), "bandwidth": [list(pair) for pair in self.bandwidth], "prefill": {**self.prefill}}


def measure_limits(threads: int | None = None, on_progress: Callable[[float], object] | None = None) -> Limits:
    """Measure the limits with 1, 2, 4 … up to `threads` threads (None: all cores that this process may use).

    `on_progress` gets 0 to 1. Memory is read as STREAM does: each thread sums its own array of 64-bit numbers; the
    arrays together are four times the last-level cache and at least 512 MiB, but no more than a quarter of the
    available memory. numpy releases the GIL while it sums. The best of five rounds counts, since interference only
    lowers the result.
    """
    report = on_progress or (lambda _fraction: None)
    most = threads or num_cores()
    counts = [*(1 << power for power in range((most - 1).bit_length())), most]
    cache = cache_bytes()
    size = min(max(_TIMES_CACHE * cache, _SMALLEST_READ), available_memory() // 4)
    bandwidth = []
    for index, num in enumerate(counts):
        report(index / (len(counts) + 1))
        share = size // num
        bandwidth.append((num, share * _calls_per_s(num, partial(_reading, share))))
    report(len(counts) / (len(counts) + 1))
    flops = 2 * _MATRIX**3 * _calls_per_s(most, _multiplication)
    report(1.0)
    return Limits(
        machine_hash=fingerprint_hash(fingerprint()),
        num_cores=most,
        cache_bytes=cache,
        bandwidth=tuple(bandwidth),
        flops=flops,
    )


def cache_bytes(root: Path = Path("/")) -> int:
    """Return the total size of the last-level caches of the allowed cores, each cache counted once.

    0 where the system does not report it. `root`: the directory that contains /sys.
    """
    caches: dict[int, dict[str, int]] = {}
    for core in allowed_cores():
        for folder in (root / f"sys/devices/system/cpu/cpu{core}/cache").glob("index*"):
            try:
                level = int((folder / "level").read_text())
                size = _size((folder / "size").read_text())
                shared_by = (folder / "shared_cpu_list").read_text().strip()
            except (OSError, ValueError):
                continue
            caches.setdefault(level, {})[shared_by] = size
    return sum(caches[max(caches)].values()) if caches else 0


def _size(text: str) -> int:
    """Return the bytes of a size in sysfs notation, such as 32768K."""
    text = text.strip()
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1:])
    return int(text[:-1]) << unit if unit else int(text)


def _reading(size: int) -> Work:
    return np.ones(size // 8).sum


def _multiplication() -> Work:
    matrix, out = np.ones((_MATRIX, _MATRIX), np.float32), np.empty((_MATRIX, _MATRIX), np.float32)
    return lambda: np.matmul(matrix, matrix, out=out)


def _calls_per_s(num_threads: int, prepare: Callable[[], Work]) -> float:
    """Return the calls per second that `num_threads` threads reach together, the best of several rounds.

    Each thread prepares its own work, so that its memory is allocated near the core that first touches it.
    """
    barrier = threading.Barrier(num_threads, timeout=_BARRIER_S)

    def run(_number: int) -> list[float]:
        work, rates = prepare(), []
        for _round in range(_NUM_ROUNDS):
            barrier.wait()
            began, num_calls = time.perf_counter(), 0
            while (seconds := time.perf_counter() - began) < _ROUND_S:
                work()
                num_calls += 1
            rates.append(num_calls / seconds)
        return rates

    with ThreadPoolExecutor(num_threads) as pool:
        return float(np.sum(list(pool.map(run, range(num_threads))), axis=0).max())
