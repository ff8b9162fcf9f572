"""Quietness: what uses the machine now, in words; a waiting task continues only when it is quiet, or is stopped."""

import json
import math
import os
import time
from pathlib import Path

import pytest

from engine.machine import quietness
from engine.machine.other_programs import LEAST_CORES, MOST_NAMED, Program, programs, used_cores
from engine.machine.quietness import QuietMeter, Quietness, wait_for_quiet
from engine.tasks import Task


@pytest.mark.parametrize(
    ("other", "steal", "named", "is_quiet", "words"),
    [
        (0.06, 0.0, {}, True, "Quiet: other programs use 3 % of the CPU."),
        (0.8, 0.0, {"chromium": 0.8}, False, "Not quiet: chromium uses 0.8 cores."),
        (1.0, 0.0, {"a": 0.6, "b": 0.3, "c": 0.1}, False, "a uses 0.6 cores, b uses 0.3 cores and c uses 0.1 cores."),
        (1.0, 0.0, {}, False, "Not quiet: other programs use 1 core."),
        (0.0, 0.3, {}, False, "Not quiet: the host takes 30 % of the CPU time."),
        (math.nan, math.nan, {}, True, "The machine's load cannot be read on this system."),
    ],
)
def test_in_words(other: float, steal: float, named: dict[str, float], is_quiet: bool, words: str) -> None:
    found = Quietness(other, 2, steal, named)
    assert found.is_quiet is is_quiet
    assert found.sentence.endswith(words)


def test_only_others_are_named_by_what_they_gained() -> None:
    before = {1: Program("init", 0, 5.0), 7: Program("us", 1, 1.0), 8: Program("worker", 7, 1.0)}
    before |= {9: Program("cc1", 1, 1.0), 10: Program("reused", 1, 90.0)}
    after = before | {7: Program("us", 1, 3.0), 8: Program("worker", 7, 3.0), 11: Program("grandchild", 8, 2.0)}
    after |= {9: Program("cc1", 1, 2.0), 10: Program("cc1", 1, 0.5), 12: Program("new", 1, 0.4)}
    assert used_cores(before, after, 2.0, ours=7) == {"cc1": 0.75, "new": 0.2}


def test_few_are_named_and_only_those_that_use_much() -> None:
    after = {pid: Program(f"p{pid}", 1, pid / 20) for pid in range(2, 30)}
    found = used_cores({}, after, 1.0, ours=100)
    assert list(found) == ["p29", "p28", "p27"]
    assert len(found) == MOST_NAMED
    assert used_cores({}, {2: Program("a", 1, LEAST_CORES / 2)}, 1.0, ours=100) == {}


@pytest.mark.parametrize("name", ["plain", "with space", "a) b (c", "((", "été"])
def test_names_are_read_whatever_they_hold(tmp_path: Path, name: str) -> None:
    (tmp_path / "42").mkdir()
    fields = ["S", "7", *["0"] * 9, "150", "50", *["0"] * 30]
    (tmp_path / "42" / "stat").write_text(f"42 ({name}) {' '.join(fields)}\n")
    (tmp_path / "43").mkdir()
    (tmp_path / "self").mkdir()
    assert programs(tmp_path) == {42: Program(name, 7, 200 / os.sysconf("SC_CLK_TCK"))}


def test_where_there_is_no_proc_nothing_is_named(tmp_path: Path) -> None:
    assert programs(tmp_path / "none") == {}


def test_it_is_read_at_once_and_as_plain_values() -> None:
    found = quietness.quietness_now()
    assert found.num_cores >= 1 and (math.isnan(found.other_cores) or found.other_cores >= 0)
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (plain["is_quiet"], plain["sentence"]) == (found.is_quiet, found.sentence)
    assert json.dumps(Quietness(math.nan, 2, math.nan, {}).to_dict(), allow_nan=False)


def test_a_meter_needs_two_readings() -> None:
    meter = QuietMeter()
    assert meter.read() is None
    assert meter.read() is None
    time.sleep(quietness.LEAST_S)
    found = meter.read()
    assert found is not None
    assert meter.read() is found


def test_who_waits_says_for_what_and_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quietness, "READING_S", 0.01)
    monkeypatch.setattr(quietness, "quietness_of", lambda _watch: Quietness(1.5, 2, 0.0, {"cc1plus": 1.5}))
    task = Task("Waiting", wait_for_quiet).start()
    until = time.monotonic() + 60
    while not task.waits_for and time.monotonic() < until:
        time.sleep(0.01)
    assert task.waits_for == "cc1plus uses 1.5 cores"
    task.stop()
    assert task.wait(60)
    assert task.state == "stopped"


def test_who_waits_goes_on_after_quiet_readings_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    loud, calm = Quietness(1.5, 2, 0.0, {}), Quietness(0.0, 2, 0.0, {})
    readings = iter([calm, calm, loud, calm, calm, calm])
    monkeypatch.setattr(quietness, "READING_S", 0.001)
    monkeypatch.setattr(quietness, "quietness_of", lambda _watch: next(readings))
    task = Task("Waiting", wait_for_quiet).start()
    task.result(60)
    assert next(readings, None) is None
