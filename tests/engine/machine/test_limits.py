"""Machine limits: caches counted once, the calls of all threads counted, plain values for the history."""

import json
import time
from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.machine import limits
from engine.machine.limits import Limits, cache_bytes, measure_limits

KNOWN = Limits(
    machine_hash="a1", num_cores=4, cache_bytes=1 << 25, bandwidth=((1, 20e9), (2, 30e9), (4, 36e9)), flops=2e11
)


def add_cache(root: Path, core: int, index: int, level: int, size: str, shared_by: str) -> None:
    folder = root / f"sys/devices/system/cpu/cpu{core}/cache/index{index}"
    folder.mkdir(parents=True)
    for name, text in (("level", str(level)), ("size", size), ("shared_cpu_list", shared_by)):
        (folder / name).write_text(text + "\n")


def test_last_level_caches_are_counted_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "allowed_cores", lambda: [0, 1, 2, 5])
    for core, shared_by in ((0, "0-3"), (1, "0-3"), (2, "0-3"), (3, "0-3"), (4, "4-7"), (5, "4-7")):
        add_cache(tmp_path, core, 0, 1, "32K", str(core))
        add_cache(tmp_path, core, 3, 3, "16M" if core > 3 else "32768K", shared_by)
    add_cache(tmp_path, 6, 3, 3, "32M", "6")
    assert cache_bytes(tmp_path) == (32 + 16) << 20


def test_a_system_that_does_not_tell_has_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "allowed_cores", lambda: [0])
    assert cache_bytes(tmp_path) == 0
    add_cache(tmp_path, 0, 0, 1, "unknown", "0")
    assert cache_bytes(tmp_path) == 0


def test_calls_of_all_threads_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_ROUND_S", 0.02)
    rates = {num: limits._calls_per_s(num, lambda: lambda: time.sleep(0.001)) for num in (1, 4)}
    assert 0 < rates[1] <= 1000
    assert rates[1] < rates[4] <= 4000


@pytest.mark.slow
def test_the_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_ROUND_S", 0.02)
    shares: list[float] = []
    found = measure_limits(threads=3, on_progress=shares.append)
    assert [num for num, _rate in found.bandwidth] == [1, 2, 3]
    assert all(rate > 0 for _num, rate in found.bandwidth)
    assert found.bandwidth_bytes_per_s == max(rate for _num, rate in found.bandwidth)
    assert found.flops > 0
    assert found.num_cores == 3
    assert len(found.machine_hash) == 16
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 1)


def test_one_thread_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_ROUND_S", 0.001)
    monkeypatch.setattr(limits, "_SMALLEST_READ", 1 << 20)
    assert [num for num, _rate in measure_limits(threads=1).bandwidth] == [1]


def test_plain_values_come_back() -> None:
    known = KNOWN.with_prefill("a model", 214.5)
    assert Limits.from_dict(json.loads(json.dumps(known.to_dict()))) == known
    assert known.prefill == {"a model": 214.5}
    assert known.with_prefill("another", 1.0).prefill == {"a model": 214.5, "another": 1.0}
    assert KNOWN.prefill == {}
    with pytest.raises(ConfigError, match="no parameter 'speed'"):
        Limits.from_dict({**known.to_dict(), "speed": 1})
