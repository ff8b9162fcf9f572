"""Hung workers: which are detected, which are not, and what happens to their jobs and to all others."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Job, Pool, Sampling, WorkerDied
from engine.llama.phase import LONGEST_S, Phase
from engine.pool.watchdog import LOADING_SILENCE_S, SILENCE_S, TICK_S, Watch, keep_watch, look_at_all
from engine.process.pulse import Pulse, Reading
from tests.conftest import ENDLESS
from tests.processes import children_with
from tests.waiting import until

pytestmark = pytest.mark.slow

POISON, HARMLESS = [666, 300], [300, 301]


class ScriptedWorker:
    """Worker that beats and moves as a test says, and records why it was ended."""

    def __init__(self, phase: Phase = Phase.IDLE) -> None:
        self.num_beats = self.num_stamps = 1
        self.phase = phase
        self.is_suspended = False
        self.watch = Watch(lambda: Reading(self.num_beats, self.num_stamps, self.phase, 0), lambda: self.is_suspended)
        self.ended: list[str] = []

    def stall(self, reason: str) -> None:
        self.ended.append(reason)


def watched(worker: ScriptedWorker, seconds: float, *, beats: bool = True, moves: bool = False) -> bool:
    """Return True if the watchdog ends the worker within this many seconds."""
    for _ in range(round(seconds / TICK_S)):
        worker.num_beats += beats
        worker.num_stamps += moves
        look_at_all([worker], TICK_S)
        if worker.ended:
            return True
    return False


@pytest.mark.parametrize("phase", Phase)
def test_a_phase_ends_in_time_or_may_last(phase: Phase) -> None:
    worker = ScriptedWorker(phase)
    most = LONGEST_S.get(phase)
    assert not watched(worker, most or 3600)
    assert watched(worker, 2 * TICK_S) == (most is not None)
    assert most is None or f"limit {most:g} s" in worker.ended[0]
    assert worker.watch.phase_s == pytest.approx(most + TICK_S if most else 3600 + 2 * TICK_S)


@pytest.mark.parametrize("phase", Phase)
def test_a_phase_that_begins_again_and_again_is_none_that_stands(phase: Phase) -> None:
    assert not watched(ScriptedWorker(phase), 3600, moves=True)


@pytest.mark.parametrize("phase", Phase)
def test_silence_is_noticed_in_every_phase(phase: Phase) -> None:
    worker = ScriptedWorker(phase)
    most = LOADING_SILENCE_S if phase == Phase.LOADING else SILENCE_S
    assert not watched(worker, most, beats=False, moves=True)
    assert watched(worker, 2 * TICK_S, beats=False, moves=True)
    assert f"no heartbeat for {most:.0f} s" in worker.ended[0]


@pytest.mark.parametrize(("phase", "num_beats"), [(Phase.LOADING, 1), (Phase.IDLE, 0)])
def test_a_worker_that_is_suspended_while_it_loads_is_noticed_as_soon_as_any(phase: Phase, num_beats: int) -> None:
    worker = ScriptedWorker(phase)
    worker.num_beats, worker.is_suspended = num_beats, True
    assert not watched(worker, SILENCE_S, beats=False)
    assert watched(worker, 2 * TICK_S, beats=False)


def test_a_worker_that_has_not_begun_to_beat_still_starts_for_a_while() -> None:
    worker = ScriptedWorker(Phase.IDLE)
    worker.num_beats = 0
    assert not watched(worker, LOADING_SILENCE_S, beats=False)
    assert watched(worker, 2 * TICK_S, beats=False)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), max_size=8), st.sampled_from(Phase))
def test_time_in_which_the_watchdog_itself_did_not_run_does_not_count(gaps: list[float], phase: Phase) -> None:
    worker = ScriptedWorker(phase)
    for gap in gaps:
        look_at_all([worker], gap)
        assert worker.watch.phase_s <= 2 * TICK_S
        worker.num_beats += 1
        worker.num_stamps += 1
        look_at_all([worker], TICK_S)
        assert (worker.watch.phase_s, worker.watch.silent_s) == (0, 0)
    assert not worker.ended


def test_a_clock_that_jumps_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, is_over, clock = ScriptedWorker(Phase.SAMPLING), threading.Event(), iter(range(0, 10**9, 10**6))
    monkeypatch.setattr("engine.pool.watchdog.time", type("Clock", (), {"monotonic": lambda: next(clock)}))
    looks = 0

    def workers() -> list[ScriptedWorker]:
        nonlocal looks
        looks += 1
        if looks == 3:
            is_over.set()
        return [worker]

    keep_watch(workers, is_over)
    assert not worker.ended
    assert worker.watch.phase_s == 3 * 2 * TICK_S


@settings(deadline=None)
@given(phase=st.sampled_from(Phase), job=st.integers(0, 2**59))
def test_what_a_child_stamps_its_parent_reads(phase: Phase, job: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        parent, child = Pulse.shared_over(ours), Pulse.received_from(theirs)
    assert parent.read() == Reading(0, 0, 0, 0)
    child.stamp(phase, job)
    assert parent.read() == Reading(0, 1, phase, job)


# Real workers

STALL = """
    import threading, time
    from engine.llama.{module} import {name} as Faulty
    real = Faulty.{method}
    def stands(self, *arguments, **options):
        if {condition}:
            {deed}
        return real(self, *arguments, **options)
    Faulty.{method} = stands
"""
SLEEPS = "time.sleep(3600)"
SPINS = "[0 for _ in iter(int, 1)]"
SEGFAULTS = "import ctypes; ctypes.string_at(0)"
PLACES: dict[str, tuple[str, str, str, str]] = {
    "tokenising": ("model", "Model", "check_ids", "list(arguments[0]) == [666, 300]"),
    "preparing grammar and samplers": ("sampler", "Sampler", "__init__", "arguments[0].seed == 666"),
    "sampling": ("sequence", "Sequence", "step", "self.ids == [666, 300]"),
}


def poisoned(fault: Callable[[str], None], place: str, deed: str) -> None:
    module, name, method, condition = PLACES[place]
    fault(STALL.format(module=module, name=name, method=method, condition=condition, deed=deed))


def poison(pool: Pool) -> Job:
    sampling = Sampling(seed=666, logit_bias=((2, float("-inf")),))
    return pool.submit(POISON, sampling, max_tokens=5, reuse_prefix=False)


@pytest.mark.parametrize(
    ("place", "deed"), [*((place, deed) for place in PLACES for deed in (SPINS, SEGFAULTS)), ("sampling", SLEEPS)]
)
def test_a_request_that_stalls_or_kills_a_worker_meets_no_other_and_harms_no_waiting_one(
    story_model: Path, fault: Callable[[str], None], place: str, deed: str
) -> None:
    poisoned(fault, place, deed)
    with Pool(story_model, threads=1, parallel=1, n_ctx=256) as pool:
        with pool.held():
            jobs = [poison(pool), pool.submit(HARMLESS, ENDLESS, max_tokens=3)]
        before = pool.workers()[0].pid
        error = jobs[0].exception(120)
        assert isinstance(error, WorkerDied)
        assert f"while {place}, the worker process" in str(error)
        assert ("limit 2 s" if deed != SEGFAULTS else "SIGSEGV") in str(error)
        assert "is not retried" in str(error)
        assert len(jobs[1].result(120).ids) == 3
        assert pool.workers()[0].pid != before


def test_a_poison_submitted_again_and_again_does_not_close_the_pool(
    story_model: Path, fault: Callable[[str], None]
) -> None:
    poisoned(fault, "preparing grammar and samplers", SEGFAULTS)
    with Pool(story_model, threads=1, parallel=1, n_ctx=256) as pool:
        for _ in range(6):
            assert isinstance(poison(pool).exception(120), WorkerDied)
        assert len(pool.submit(HARMLESS, ENDLESS, max_tokens=3).result(120).ids) == 3


def test_a_stopped_worker_is_replaced_and_its_jobs_end_with_the_reason(story_model: Path) -> None:
    with Pool(story_model, threads=1, parallel=1, n_ctx=512) as pool:
        running = pool.submit("Once", ENDLESS, max_tokens=480)
        waiting = pool.submit("Twice", ENDLESS, max_tokens=3)
        next(iter(running))
        os.kill(pool.workers()[0].pid, signal.SIGSTOP)
        # it may have been stopped while it sampled, which has a limit of its own
        with pytest.raises(WorkerDied, match="no heartbeat for 5 s|while sampling, the worker process hung"):
            running.result(120)
        assert len(waiting.result(120).ids) == 3


LONG_DECODE = """
    import threading, time
    from engine.llama.context import Context
    decode = Context.decode
    def slow(self):
        if self._batch.struct.n_tokens == 9:
            time.sleep(4)
        return decode(self)
    Context.decode = slow
"""


def test_a_long_decode_is_shown_and_not_ended(story_model: Path, fault: Callable[[str], None]) -> None:
    fault(LONG_DECODE)
    with Pool(story_model, threads=1, parallel=1, n_ctx=256) as pool:
        pid = pool.workers()[0].pid
        job = pool.submit(list(range(300, 309)), ENDLESS, max_tokens=2)
        until(lambda: pool.workers()[0].phase == "decoding" and pool.workers()[0].phase_s > 2.5)
        assert not job.done()
        assert len(job.result(60).ids) == 2
        assert pool.workers()[0].pid == pid


def test_a_worker_that_waits_for_its_parent_is_none_that_stands(story_model: Path) -> None:
    with Pool(story_model, threads=1, parallel=2, n_ctx=256) as pool:
        pid = pool.workers()[0].pid
        slow = pool.submit(HARMLESS, ENDLESS, max_tokens=200, top_k=1000)
        gate = threading.Event()
        slow.add_listener(lambda: gate.wait(60))
        until(lambda: pool.workers()[0].phase == "sending" and pool.workers()[0].phase_s > 3)
        gate.set()
        assert len(slow.result(60).ids) == 200
        assert pool.workers()[0].pid == pid


def test_a_load_that_stands_still_is_ended(story_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.pool.watchdog.SILENCE_S", 1.0)
    stopped: list[int] = []

    def stop(_fraction: float) -> None:
        if not stopped:
            stopped.append(children_with("engine.pool.worker")[-1].pid)
            os.kill(stopped[-1], signal.SIGSTOP)

    with pytest.raises(Exception, match="no heartbeat"):
        Pool(story_model, threads=1, parallel=1, n_ctx=256, on_progress=stop)
