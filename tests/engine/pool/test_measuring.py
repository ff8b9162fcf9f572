"""Pool features for benchmarks: workers released together, other builds, figures without a hang, balance."""

import os
import signal
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from engine import JobTimeout, ModelError, Pool
from tests.conftest import ENDLESS


@pytest.fixture(scope="module")
def libraries() -> Path:
    """The folder of llama.cpp libraries in the Python package."""
    package = find_spec("llama_cpp")
    assert package is not None and package.origin is not None
    return Path(package.origin).parent / "lib"


def test_held_workers_take_jobs_and_compute_nothing(pool: Pool) -> None:
    with pool.held():
        jobs = [pool.submit([1, 2, 3], ENDLESS, max_tokens=2) for _ in range(3)]
        time.sleep(0.2)
        assert not any(job.is_started for job in jobs)
        released = time.monotonic()
    done = [job.result(60) for job in jobs]
    assert all(job.submitted + one.timings.queue_s >= released for job, one in zip(jobs, done, strict=True))
    assert pool.submit([1, 2, 3], ENDLESS, max_tokens=1).result(60).ids


def test_workers_are_held_until_the_last_of_two_blocks_ends(pool: Pool) -> None:
    before = pool.measure()[0]["num_decodes"]
    with pool.held():
        with pool.held():
            first = pool.submit([1, 2, 3], ENDLESS, max_tokens=1, reuse_prefix=False)
        time.sleep(0.2)
        assert not first.is_started
        second = pool.submit([1, 2, 3], ENDLESS, max_tokens=1, reuse_prefix=False)
    assert first.result(60).ids and second.result(60).ids
    assert pool.measure()[0]["num_decodes"] == before + 1


def test_all_that_was_submitted_meanwhile_starts_in_one_step(pool: Pool) -> None:
    before = pool.measure()[0]["num_decodes"]
    with pool.held():
        jobs = [pool.submit([1, 2, 3], ENDLESS, max_tokens=1, reuse_prefix=False) for _ in range(pool.spec.parallel)]
    for job in jobs:
        job.result(60)
    assert pool.measure()[0]["num_decodes"] == before + 1


def test_an_error_inside_the_block_releases_the_workers(pool: Pool) -> None:
    with pytest.raises(KeyError), pool.held():
        raise KeyError
    assert pool.submit([1, 2, 3], ENDLESS, max_tokens=1).result(60).ids


def test_the_time_of_starting_up_is_split(pool: Pool) -> None:
    assert all(seconds > 0 for seconds in pool.startup)
    assert pool.startup.load_s == pool.load_s


def test_workers_take_the_build_they_are_given(story_model: Path, libraries: Path, tmp_path: Path) -> None:
    build = tmp_path / "build"
    build.symlink_to(libraries)
    with Pool(story_model, parallel=1, n_ctx=256, build=str(build)) as other:
        loaded = Path(f"/proc/{other.workers()[0].pid}/environ").read_bytes()
        assert f"LLAMA_CPP_LIB_PATH={build}".encode() in loaded
        assert other.submit([1, 2, 3], ENDLESS, max_tokens=2).result(60).ids


def test_a_build_without_libraries_says_so(story_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="llama"):
        Pool(story_model, parallel=1, n_ctx=256, build=str(tmp_path))


def test_figures_of_a_stopped_worker_time_out(story_model: Path) -> None:
    with Pool(story_model, parallel=1, n_ctx=256) as stopped:
        pid = stopped.workers()[0].pid
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(JobTimeout, match="hangs"):
            stopped.measure(0.2)
        os.kill(pid, signal.SIGCONT)
        assert stopped.measure(30)[0]["pid"] == pid


def test_prompts_that_reuse_nothing_go_where_least_is_to_do(story_model: Path) -> None:
    prompt = list(range(300, 400))
    with Pool(story_model, instances=2, threads=1, parallel=2, n_ctx=256) as two:
        two.submit(prompt, ENDLESS, max_tokens=1).result(60)
        with two.held():
            jobs = [two.submit(prompt, ENDLESS, max_tokens=1, reuse_prefix=False) for _ in range(2)]
            assert [worker.num_waiting for worker in two.workers()] == [1, 1]
        for job in jobs:
            assert job.result(60).timings.num_cached == 0
