"""Failures of a pool: dying workers, dying parents, bad files; an error each time, nothing left over, no hang."""

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import psutil
import pytest

from engine import ModelError, Pool, PoolClosed, WorkerDied
from engine.models.synthetic import write_synthetic
from tests.conftest import ENDLESS
from tests.processes import has_ended

HOLDER = """
import signal, sys, time
from engine import Pool, Sampling
signal.signal(signal.SIGINT, signal.default_int_handler)
pool = Pool(sys.argv[1], instances=2, threads=1, parallel=2, n_ctx=512)
job = pool.submit("Once", Sampling(logit_bias={2: float("-inf")}), max_tokens=500)
next(iter(job))
print(*[worker.pid for worker in pool.workers()], flush=True)
while sys.argv[2] != "exit":
    time.sleep(0.05)
"""
"""Accepts SIGINT even where the tests run in the background of a shell, which ignores it, and sleeps in short
intervals: a blocking read would miss a signal that arrived just before it."""


@pytest.fixture
def small(story_model: Path) -> Iterator[Pool]:
    with Pool(story_model, threads=1, parallel=2, n_ctx=512) as made:
        yield made


def kill(pool: Pool) -> None:
    os.kill(pool.workers()[0].pid, signal.SIGKILL)


def gone(pids: list[int], timeout_s: float = 60) -> bool:
    """Return True once none of the processes runs any more, False after the timeout."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if all(map(has_ended, pids)):
            return True
        time.sleep(0.05)
    return False


def test_a_killed_worker_fails_its_streams_and_is_replaced(small: Pool) -> None:
    job = small.submit("Once upon a time", ENDLESS, max_tokens=480)
    next(iter(job))
    kill(small)
    with pytest.raises(WorkerDied, match="SIGKILL"):
        job.result(60)
    assert len(job.steps) > 0, "what was streamed stays"
    assert small.submit("Once", ENDLESS, max_tokens=3).result(60).ids


def test_a_job_without_a_token_is_tried_again(small: Pool) -> None:
    busy = [small.submit("Once upon a time", ENDLESS, max_tokens=480) for _ in range(2)]
    for job in busy:
        next(iter(job))
    waiting = small.submit("Twice", ENDLESS, max_tokens=3)
    kill(small)
    assert len(waiting.result(60).ids) == 3
    assert all(isinstance(job.exception(60), WorkerDied) for job in busy)


@pytest.mark.slow
def test_a_worker_that_keeps_dying_closes_the_pool_with_the_reason(small: Pool) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for worker in small.workers():
            os.kill(worker.pid, signal.SIGKILL)
        try:
            small.tokenize("a")
        except PoolClosed:
            break
        except WorkerDied:
            pass
        time.sleep(0.05)
    with pytest.raises(PoolClosed):
        small.submit("a").result(60)


FATAL = """
    from engine.llama.context import Context
    decode = Context.decode
    def fails(self):
        return {code} if self._batch.struct.n_tokens == 9 else decode(self)
    Context.decode = fails
"""


@pytest.mark.parametrize("code", [-2, -3])
def test_the_reason_of_a_fatal_decode_reaches_its_jobs_and_questions(
    story_model: Path, fault: Callable[[str], None], code: int
) -> None:
    fault(FATAL.format(code=code))
    with Pool(story_model, threads=1, parallel=2, n_ctx=512) as failing:
        job = failing.submit(list(range(300, 309)), ENDLESS, max_tokens=3)
        with pytest.raises(WorkerDied, match=f"gave up: llama_decode returned {code}"):
            job.result(60)
        assert failing.submit([300], ENDLESS, max_tokens=3).result(60).ids, "and another took its place"


def test_a_defect_in_a_listening_thread_ends_the_jobs_of_its_worker(
    small: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_message: object) -> None:
        monkeypatch.undo()
        raise KeyError("a defect")

    job = small.submit("Once", ENDLESS, max_tokens=480)
    next(iter(job))
    monkeypatch.setattr(small._jobs, "on_decoded", fails)
    with pytest.raises(WorkerDied):
        job.result(60)
    assert "a defect" in caplog.text
    assert small.submit("Once", ENDLESS, max_tokens=3).result(60).ids


@pytest.mark.slow
def test_a_question_open_when_the_pool_closes_is_answered(small: Pool) -> None:
    os.kill(small.workers()[0].pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as caller:
        asked = caller.submit(small.tokenize, "a")
        time.sleep(0.2)
        small.close()
        with pytest.raises(PoolClosed):
            asked.result(60)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["exit", "sigint", "sigterm", "sigkill"])
def test_no_worker_outlives_its_parent(story_model: Path, way: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(story_model), way],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        if way != "exit":
            parent.send_signal(signal.Signals[way.upper()])
        try:
            parent.wait(60)
        finally:
            parent.kill()
    assert len(pids) == 2
    assert gone(pids)


def test_a_pool_nobody_holds_ends_its_workers(story_model: Path) -> None:
    pool = Pool(story_model, parallel=1, n_ctx=256)
    pids = [worker.pid for worker in pool.workers()]
    del pool
    assert gone(pids)


@pytest.mark.parametrize("content", [None, b"", b"not a model at all", b"GGUF\x63\x00\x00\x00" + bytes(64)])
def test_a_file_that_is_no_model_is_refused_before_any_worker(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "wrong.gguf"
    if content is not None:
        path.write_bytes(content)
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(ModelError, match=r"wrong\.gguf"):
        Pool(path)
    assert {child.pid for child in psutil.Process().children()} <= before


def test_a_truncated_model_is_refused(tmp_path: Path, story_model: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(story_model.read_bytes()[:-5000])
    with pytest.raises(ModelError, match=r"short\.gguf"):
        Pool(path)


def test_a_model_that_llama_cpp_refuses_says_so_with_its_log(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    write_synthetic("tiny", path)
    content = path.read_bytes()
    assert b"blk.0.attn_q.weight" in content
    path.write_bytes(content.replace(b"blk.0.attn_q.weight", b"blk.0.attn_X.weight"))
    with pytest.raises(ModelError, match="attn_q"):
        Pool(path, parallel=1, n_ctx=256)


def test_logits_that_are_no_numbers_end_only_that_job(tmp_path: Path) -> None:
    path = tmp_path / "nan.gguf"
    write_synthetic("tiny", path, "F32")
    poison(path)
    with Pool(path, parallel=2, n_ctx=256, share_weights=True) as pool:
        with pytest.raises(ModelError, match="generated token 1"):
            pool.submit([1, 2, 3], max_tokens=4, top_k=1).result(60)
        assert pool.workers()


def poison(path: Path) -> None:
    """Overwrite the final norm with NaN."""
    norm = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == "output_norm.weight")
    with path.open("r+b") as file:
        file.seek(int(norm.data_offset))
        file.write(struct.pack("<f", float("nan")) * int(norm.n_elements))
