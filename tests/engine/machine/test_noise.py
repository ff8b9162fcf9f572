"""Noise during a sample: read from the kernel, separated from our own work, turned into a flag."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine.machine.noise import NoiseWatch, flag_of
from engine.machine.other_programs import programs, used_cores
from engine.samples import METRICS_BY_NAME, SYSTEM_NOISE, Flag

BURN = "while True: pass"
ORPHAN = f"""
import subprocess, sys
nothing = subprocess.DEVNULL
print(subprocess.Popen([sys.executable, "-c", {BURN!r}], stdout=nothing, stderr=nothing).pid)
"""
CALM = dict.fromkeys(SYSTEM_NOISE, 0.0)


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that burns a core and does not descend from this one."""
    done = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    yield pid
    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def child() -> Iterator[int]:
    """Child process that burns a core."""
    with subprocess.Popen([sys.executable, "-c", BURN]) as process:
        yield process.pid
        process.kill()


def test_all_surroundings_are_reported() -> None:
    with NoiseWatch() as watch:
        pass
    assert set(watch.values()) == set(SYSTEM_NOISE)
    assert set(watch.use()) <= set(METRICS_BY_NAME)


def test_what_others_burn_is_seen_and_makes_a_sample_contended(stranger: int) -> None:
    with NoiseWatch() as watch:
        time.sleep(0.6)
    assert watch.values()["other_cores"] > 0.4
    assert watch.flag() == "contended"


@pytest.mark.parametrize("name", ["plain", "a) b (c", "\x1b[31mred\x07", "two\nlines", "\u202egnp"])
def test_names_of_programs_hold_nothing_that_steers_a_terminal(tmp_path: Path, name: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(f"7 ({name}) R 1 " + " ".join("5" * 40))
    ((pid, program),) = programs(tmp_path).items()
    assert (pid, program.parent) == (7, 1)
    assert program.name.isprintable()
    assert len(program.name) == len(name)


@pytest.mark.alone
def test_what_we_burn_is_ours(child: int) -> None:
    with NoiseWatch([child]) as watch:
        time.sleep(0.6)
    used = watch.use()["cpu_cores"]
    assert used > 0.4
    assert watch.values()["other_cores"] < used


def test_this_process_is_told_apart_from_its_workers() -> None:
    with NoiseWatch() as watch:
        until = time.process_time() + 0.2
        while time.process_time() < until:
            pass
    assert watch.use()["cpu_cores"] == 0
    cores = os.cpu_count()
    assert cores is not None and watch.use()["workbench_share"] * watch.seconds * cores >= 0.19


def test_switches_are_counted(child: int) -> None:
    with NoiseWatch([os.getpid()]) as watch:
        for _ in range(50):
            time.sleep(0.001)
    assert watch.use()["switches_per_s"] * watch.seconds >= 50


def test_a_process_that_ended_disturbs_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with NoiseWatch([process.pid]) as watch:
        pass
    assert math.isnan(watch.use()["switches_per_s"])
    assert watch.use()["cpu_cores"] == 0


@pytest.mark.parametrize(
    ("found", "flag"),
    [
        ({}, "clean"),
        ({"steal_share": 0.03}, "contended"),
        ({"other_cores": 0.3}, "contended"),
        ({"other_cores": 0.1}, "clean"),
        ({"major_faults": 100.0}, "cold"),
        ({"throttled_s": 0.1}, "throttled"),
        ({"throttled_s": 0.1, "major_faults": 100.0, "steal_share": 0.5}, "throttled"),
        ({"pressure_share": 1.0, "involuntary_switches": 1e6}, "clean"),
        (dict.fromkeys(SYSTEM_NOISE, math.nan), "clean"),
    ],
)
def test_flags(found: dict[str, float], flag: Flag) -> None:
    assert flag_of(CALM | found, seconds=2.0, num_cores=4) == flag


def test_the_program_that_burns_a_core_is_named(stranger: int) -> None:
    with NoiseWatch() as watch:
        time.sleep(0.6)
    name = psutil.Process(stranger).name()
    assert watch.programs()[name] > 0.3


def test_no_program_of_ours_is_named(child: int) -> None:
    with NoiseWatch() as watch:
        time.sleep(0.6)
    before, after = watch._programs_before, watch._programs_after
    assert after[child].seconds > before[child].seconds
    assert used_cores(before, {child: after[child]._replace(parent=os.getpid())}, 0.6, os.getpid()) == {}
