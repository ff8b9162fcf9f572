"""Two nodes of one core against one pool of two instances; what a message costs the front; nodes that are killed."""

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import psutil

from engine import Job, Pool
from engine.errors import WorkerDied
from engine.models.library import embedded_model
from engine.pool import messages as m
from engine.pool.job_queue import JobQueue
from engine.pool.worker_process import WorkerProcess
from tests.ray_cluster import RayCluster, ray_cluster
from tests.speed.common import (
    N_CTX,
    NUM_TOKENS,
    Row,
    at_least,
    at_most,
    interleaved,
    model,
    prompts,
    ratio,
    run,
    sampling,
    token_times,
    warm,
)
from tests.waiting import until

ROUNDS = 6
SHAPE = "llama-1.1b-32k"
STREAMS, NUM_KILLS = 32, 20
START_S, ANSWER_S, HUNG_S = 180.0, 5.0, 60.0
IDLE_S = 5.0
EVERY = 8
"""A moment is noted at each eighth message: reading three clocks would add to what is measured."""
OF_FRONT = "processor time of the front beyond its idle share, without the thread that reads the tokens"


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """A row for each goal, and one for what Ray costs while nothing runs."""
    path = model(shape)
    with ray_cluster("a", "b") as cluster:
        rows = [idle_cpu(cluster), *against_one_pool(path, cluster, num_rounds)]
    with ray_cluster("a", "b", "c") as cluster:
        return [*rows, *kills(cluster)]


def against_one_pool(path: str, cluster: RayCluster, num_rounds: int) -> list[Row]:
    """Tokens a second of 32 streams end to end, the latency of a token, and the front's processor time a message."""
    each: dict[str, Any] = {"threads": 1, "parallel": STREAMS // 2, "n_ctx": N_CTX, "share_weights": False}
    cpu: dict[str, list[FrontCpu]] = {"spread": [], "one": [], "spread, one stream": [], "one, one stream": []}
    with ExitStack() as opened:
        spread = opened.enter_context(warm(Pool(path, cluster=cluster.address, **each)))
        one = opened.enter_context(warm(Pool(path, instances=2, **each)))
        given = prompts(STREAMS, most=len(one.vocabulary))
        idle = idle_share(time.process_time)
        moments = opened.enter_context(timed_messages())

        def timed(name: str, work: Callable[[], float]) -> float:
            """Do the work, noting the processor time of this process a message."""
            moments.clear()
            done = work()
            cpu[name].append(FrontCpu.of(moments, idle))
            return done

        def streams(name: str, pool: Pool) -> float:
            return timed(name, lambda: run(pool, given, top_k=10, max_tokens=NUM_TOKENS // 2).per_s)

        def stream(name: str, pool: Pool) -> float:
            return timed(f"{name}, one stream", lambda: latency_ms(pool, given[0]))

        found = interleaved(num_rounds, spread=lambda: streams("spread", spread), one=lambda: streams("one", one))
        late = interleaved(num_rounds, spread=lambda: stream("spread", spread), one=lambda: stream("one", one))
    speed = ratio(found["spread"], found["one"])
    beside = f"{np.mean(found['spread']):.1f} against {np.mean(found['one']):.1f} tokens a second"
    added = float(np.median(late["spread"]) - np.median(late["one"]))
    costs = {name: FrontCpu(*np.median(values, axis=0).tolist()) for name, values in cpu.items()}
    return [
        at_least("two nodes of one core, 32 streams, against one pool of two instances", speed.value, 0.95,
                 f"{speed}; {beside}"),
        at_most("latency of a token that a node adds, p95", added, 1.0,
                f"{np.median(late['spread']):.2f} ms against {np.median(late['one']):.2f}", "ms"),
        at_most(f"{OF_FRONT}, a message of one token", costs["spread, one stream"].others_us, 150,
                f"{costs['spread, one stream'].beside}; {costs['one, one stream']} for a worker of this machine", "µs"),
        Row("processor time of the front while both pools are idle", 100 * idle, "% of a core"),
        Row(f"{OF_FRONT}, a message of 16 streams", costs["spread"].others_us, "µs",
            beside=f"{costs['spread'].beside}; {costs['one']} for workers of this machine"),
    ]  # fmt: skip


class Moment(NamedTuple):
    """Monotonic seconds, processor seconds of this process, and of them those of the thread that reads the tokens."""

    at_s: float
    process_s: float
    reader_s: float


class FrontCpu(NamedTuple):
    """Processor time of this process a message, beyond what it takes idle: in the thread that reads the tokens, and in
    all others."""

    others_us: float
    reader_us: float

    @classmethod
    def of(cls, moments: list[Moment], idle: float) -> Self:
        """Return that from the first moment, which follows prompts and submissions, to the last.

        idle: share of a core that this process takes without messages.
        """
        elapsed_us, process_us, reader_us = 1e6 * (np.array(moments[-1]) - moments[0]) / (EVERY * (len(moments) - 1))
        return cls(process_us - reader_us - idle * elapsed_us, reader_us)

    @property
    def beside(self) -> str:
        """What the reader takes more."""
        return f"{self.reader_us:.0f} µs more in the thread that reads the tokens"

    def __str__(self) -> str:
        return f"{self.others_us:.0f} and {self.reader_us:.0f} µs"


@contextmanager
def timed_messages() -> Iterator[list[Moment]]:
    """Note the moment of each eighth message with tokens that reaches this process; this thread reads them."""
    moments: list[Moment] = []
    given, reader = JobQueue.on_decoded, time.pthread_getcpuclockid(threading.get_ident())
    numbers = itertools.count()

    def timed(self: JobQueue, worker: WorkerProcess, message: m.Decoded) -> None:
        if next(numbers) % EVERY == 0:
            moments.append(Moment(time.monotonic(), time.process_time(), time.clock_gettime(reader)))
        given(self, worker, message)

    JobQueue.on_decoded = timed  # type: ignore[method-assign]
    try:
        yield moments
    finally:
        JobQueue.on_decoded = given  # type: ignore[method-assign]


def latency_ms(pool: Pool, ids: list[int]) -> float:
    """95th percentile of the time from when a token is decoded until a reader of the only stream has it."""
    job = pool.submit(ids, sampling(pool), max_tokens=NUM_TOKENS, top_k=10, reuse_prefix=False)
    seen = []
    for _step in job:
        seen.append(time.monotonic())
    job.result()
    return float(1e3 * np.percentile(np.array(seen) - token_times(job), 95))


def idle_share(cpu: Callable[[], float]) -> float:
    """Share of a core that is used while nothing runs; cpu: returns processor seconds so far."""
    began, before = time.monotonic(), cpu()
    time.sleep(IDLE_S)
    return (cpu() - before) / (time.monotonic() - began)


def idle_cpu(cluster: RayCluster) -> Row:
    """Processor time of all of Ray's processes while nothing runs."""
    idle = idle_share(partial(cpu_s, cluster.processes()))
    return Row("Ray's processes for two nodes and a head, idle", 100 * idle, "% of a core")


def cpu_s(processes: list[psutil.Process]) -> float:
    """Processor seconds of those that still run."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def _have_begun(jobs: list[Job]) -> bool:
    return sum(len(job.steps) > 0 for job in jobs) >= 12


def _is_answered(job: Job) -> bool:
    """Return whether a job has ended, or waits again after its worker was lost."""
    return job.done() or job.is_retried


def kills(cluster: RayCluster) -> list[Row]:
    """Kill one of three nodes under load, again and again."""
    num_hung = num_orphans = num_named = num_retried = 0
    slowest_s = 0.0
    with warm(Pool(embedded_model(), cluster=cluster.address, threads=1, parallel=8, n_ctx=N_CTX)) as pool:
        given = prompts(48, most=len(pool.vocabulary))
        for number in range(NUM_KILLS):
            until(lambda: len(pool.workers()) == 3, "a node did not come back", START_S)
            name = "abc"[number % 3]
            worker = next(one.pid for one in pool.workers() if one.node == name)
            jobs = [pool.submit(ids, sampling(pool), max_tokens=160) for ids in given]
            until(partial(_have_begun, jobs), "no tokens come")
            victims = pool._jobs.of(next(one for one in pool._group.alive if one.node == name))
            killed_at = time.monotonic()
            cluster.kill(name)
            for job in victims:
                until(partial(_is_answered, job), "a job hangs", HUNG_S)
            slowest_s = max(slowest_s, time.monotonic() - killed_at)
            for job in jobs:
                try:
                    job.result(HUNG_S)
                    num_retried += job.is_retried
                except WorkerDied as error:
                    num_named += f"node {name}" in str(error)
                except TimeoutError:
                    num_hung += 1
            num_orphans += psutil.pid_exists(worker) and psutil.Process(worker).status() != psutil.STATUS_ZOMBIE
            cluster.add(name)
            print(f"  kill {number + 1} of {NUM_KILLS}", end="\r", file=sys.stderr, flush=True)
    beside = f"{num_named} jobs ended with the node's name, {num_retried} went on elsewhere"
    return [
        at_most(f"slowest answer of a killed node's jobs, {NUM_KILLS} kills", slowest_s, ANSWER_S, beside, "s"),
        at_most("jobs that hung", num_hung, 0, unit="jobs"),
        at_most("workers that outlived their node", num_orphans, 0, unit="workers"),
    ]
