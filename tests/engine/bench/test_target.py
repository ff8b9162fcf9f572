"""Pool as a target: a complete sample, and samples that fail or are stopped."""

import gc
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine import ConfigError, ModelError, PoolClosed, WorkerDied
from engine.bench.measurement.target import EngineTarget, load_cold, open_engine_target
from engine.errors import BenchTimeout
from engine.pool.pool import Pool
from engine.samples import METRICS_BY_NAME, SYSTEM_NOISE
from tests.engine.bench.cell_maker import make_cell
from tests.processes import children_with

LONG: dict[str, Any] = {"num_generated": 200}


@pytest.fixture
def target(story_model: Path) -> Iterator[EngineTarget]:
    made = open_engine_target(make_cell(story_model), sample_s=0.2)
    yield made
    made.close()


@pytest.fixture
def slow(story_model: Path) -> Iterator[EngineTarget]:
    """Target whose sample takes long enough to be interrupted."""
    made = open_engine_target(make_cell(story_model, **LONG), sample_s=5.0)
    yield made
    made.close()


def limited_python(folder: Path, num_bytes: int) -> str:
    """Write a Python launcher limited to `num_bytes` of address space, and return its path."""
    program = folder / "limited"
    program.write_text(f'#!/bin/sh\nulimit -v {num_bytes >> 10}\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return str(program)


def test_a_sample_has_every_metric_and_every_surrounding(target: EngineTarget) -> None:
    target.warm_up(60)
    measured = target.sample(1, 60)
    assert set(measured.metrics) == set(METRICS_BY_NAME) - {"sentences_per_s", "embedded_per_s", "compute_share"}
    assert set(measured.noise) == set(SYSTEM_NOISE)
    assert measured.duration_s >= 0.2
    assert abs(measured.started_at + measured.duration_s - time.time()) < 60


def test_the_figures_of_a_sample_agree(target: EngineTarget) -> None:
    target.warm_up(60)
    found = target.sample(1, 60).metrics
    assert found["decode_per_s"] == pytest.approx(1 / found["tpot_s"])
    assert 0 < found["decode_share"] < 1
    assert found["cpu_cores"] > 0 and 0 < found["workbench_share"] < 1
    assert found["pss_bytes"] >= found["private_bytes"] > 1 << 20
    assert found["goodput_per_s"] <= found["requests_per_s"]
    assert found["end_to_end_per_s"] == pytest.approx(8 * found["requests_per_s"])


def test_what_is_measured_once(target: EngineTarget) -> None:
    target.warm_up(60)
    assert set(target.facts) == {"load_warm_s", "interpreter_s", "rest_s", "first_token_s", "repetitions"}
    assert all(value > 0 for value in target.facts.values())
    assert target.facts["repetitions"] == math.floor(target.facts["repetitions"])


def test_a_cell_beside_it_shares_workers_and_load_facts(target: EngineTarget, story_model: Path) -> None:
    target.warm_up(60)
    beside = target.beside(make_cell(story_model, number=1, num_generated=4))
    beside.warm_up(60)
    assert beside.engine is target.engine
    assert beside.facts["first_token_s"] == target.facts["first_token_s"]
    assert math.isfinite(beside.sample(0, 60).metrics["tokens_per_s"])


def test_a_pool_of_somebody_else_has_no_load_facts(pool: Pool, story_model: Path) -> None:
    given = open_engine_target(make_cell(story_model), engine=pool, sample_s=0.1)
    given.warm_up(60)
    assert set(given.facts) == {"repetitions"}
    assert given.sample(0, 60).metrics["tokens_per_s"] > 0


def test_garbage_is_collected_again_after_a_sample(target: EngineTarget) -> None:
    target.sample(0, 60)
    assert gc.isenabled()
    with pytest.raises(BenchTimeout):
        target.sample(0, 1e-4)
    assert gc.isenabled()


def test_a_cold_load_tells_what_the_page_cache_held(story_model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    with copy.open("wb") as file:
        file.write(story_model.read_bytes())
        os.fsync(file.fileno())
    found = load_cold(make_cell(copy))
    assert found["load_cold_s"] > 0 and found["first_token_cold_s"] > 0
    with Pool(copy, parallel=1, n_ctx=256, share_weights=True):
        held = load_cold(make_cell(copy))
    assert found["resident_share"] <= held["resident_share"] <= 1


def test_a_sample_of_fewer_workers_than_asked_for_is_an_error_that_names_the_node(
    story_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = open_engine_target(make_cell(story_model, pool={"instances": 2}), sample_s=0.1)
    with closing(target):
        all_run = [one._replace(node=node) for one, node in zip(target.engine.workers(), ("ash", "elm"), strict=True)]
        monkeypatch.setattr(Pool, "workers", lambda _self: all_run)
        beside = target.beside(make_cell(story_model, pool={"instances": 2}))
        figures = target.engine.measure()
        monkeypatch.setattr(Pool, "workers", lambda _self: all_run[:1])
        monkeypatch.setattr(Pool, "measure", lambda _self, _timeout: figures[:1])
        with pytest.raises(WorkerDied, match=r"only 1 of 2 workers run \(lost: node elm\)"):
            beside.sample(0, 60)


@pytest.mark.slow
def test_a_worker_that_hangs_is_a_timeout_and_can_be_closed(slow: EngineTarget) -> None:
    pid = slow.engine.workers()[0].pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(BenchTimeout, match="hang"):
        slow.sample(0, 0.3)
    with pytest.raises(BenchTimeout, match="hang"):
        slow.warm_up(0.3)
    slow.close()
    assert not psutil.pid_exists(pid)


@pytest.mark.slow
def test_a_worker_killed_in_a_sample_is_its_error(slow: EngineTarget) -> None:
    pid = slow.engine.workers()[0].pid
    killer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(WorkerDied):
        slow.sample(0, 60)
    killer.join()


def test_a_worker_replaced_unseen_is_an_error_too(target: EngineTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = iter([[{"pid": 1.0}], [{"pid": 2.0}]])
    monkeypatch.setattr(target.engine, "measure", lambda _timeout: next(figures))
    with pytest.raises(WorkerDied, match="measure again"):
        target.sample(0, 60)


def test_a_sample_is_stopped_from_another_thread(slow: EngineTarget) -> None:
    closer = threading.Timer(0.3, slow.close)
    closer.start()
    with pytest.raises((PoolClosed, WorkerDied)):
        slow.sample(0, 60)
    closer.join()


@pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes are Linux's")
def test_a_worker_out_of_memory_dies_with_the_reason(story_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")  # with huge pages the heap has room for the prompt
    target = open_engine_target(make_cell(story_model, asked="prompts", prompts=("word " * 400_000,)))
    worker = children_with("engine.pool.worker")[-1]
    worker.rlimit(psutil.RLIMIT_AS, (worker.memory_info().vms,) * 2)
    with pytest.raises(WorkerDied, match="MemoryError|bad_alloc"):
        target.sample(0, 60)
    target.close()


def test_a_cell_that_memory_does_not_hold_cannot_be_opened(
    story_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", limited_python(tmp_path, 1536 << 20))
    with pytest.raises(ModelError, match="64 × 8,192 tokens|ended|crashed"):
        open_engine_target(make_cell(story_model, pool={"parallel": 64, "n_ctx": 8192}))


def test_what_does_not_fit_closes_the_pool_it_opened(story_model: Path) -> None:
    before = set(psutil.Process().children())
    with pytest.raises(ConfigError, match="n_ctx"):
        open_engine_target(make_cell(story_model, num_prompt=1000))
    assert set(psutil.Process().children()) <= before


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.gguf"):
        open_engine_target(make_cell(tmp_path / "none.gguf"))
