"""Jobs that change their sequence while they run, so that the sequences in use stay consecutive."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import monotonic

import numpy as np

from engine.errors import EngineError
from engine.llama.context import Context
from engine.llama.model import Model
from engine.llama.runner import QueuedRequest, Runner
from engine.llama.sequence import Sequence
from engine.specs import PoolSpec, Request, Sampling
from engine.step_parts import Records, step_dtype

FIRST, SHORT, LAST = range(3)
PROMPTS = ("Once upon a time there lived a king", "The fox said to the crow", "In a dark wood there stood a hut")
END_OF_SEQUENCE = 2
GREEDY = Sampling(temperature=0, logit_bias=((END_OF_SEQUENCE, -math.inf),))


def order(job: int, max_tokens: int) -> QueuedRequest:
    """Return a greedy job that does not end before its last token."""
    request = Request(max_tokens=max_tokens, top_k=1, reuse_prefix=False)
    return QueuedRequest(job, PROMPTS[job], GREEDY, request, monotonic())


class Reporter:
    """Reports of the runner: each job's records, and its end."""

    def __init__(self) -> None:
        self.records: dict[int, list[bytes]] = {FIRST: [], SHORT: [], LAST: []}
        self.over: list[int] = []

    def started(self, job: int, prompt_ids: list[int], num_cached: int, seed: int, queue_s: float) -> None: ...

    def steps(self, job: int, steps: Iterable[bytes], *, is_prompt: bool) -> None:
        self.records[job] += steps

    def ended(self, sequence: Sequence) -> None:
        self.over.append(sequence.job)

    def cancelled(self, job: int) -> None: ...

    def failed(self, job: int, error: EngineError) -> None:
        raise error

    def of(self, job: int) -> Records:
        rows = np.frombuffer(b"".join(self.records[job]), step_dtype(1))
        records: Records = rows["record"]
        return records


@contextmanager
def running(model: Model, *orders: QueuedRequest) -> Iterator[tuple[Runner, Reporter]]:
    reporter = Reporter()
    spec = PoolSpec(parallel=4, n_ctx=128)
    context = Context(model, spec, 1, 1)
    runner = Runner(
        model,
        context,
        spec,
        threads=1,
        threads_batch=1,
        prefill_share=32,
        reporter=reporter,
        stamp=lambda _phase, _job=0: None,
    )
    for one in orders:
        runner.submit(one)
    yield runner, reporter
    context.close()


def test_a_job_goes_on_in_another_sequence_with_the_same_tokens(model: Model) -> None:
    with running(model, order(FIRST, 48), order(SHORT, 8), order(LAST, 48)) as (runner, together):
        while SHORT not in together.over:
            runner.step()
        assert list(runner.scheduler.running) == [0, 2]
        runner.step()
        first, last = runner.scheduler.running
        assert abs(first - last) == 1
        while not runner.is_idle:
            runner.step()
    for job in (FIRST, LAST):
        with running(model, order(job, 48)) as (runner, alone):
            while not runner.is_idle:
                runner.step()
        assert together.of(job)["id"].tolist() == alone.of(job)["id"].tolist()
        assert np.abs(together.of(job)["logprob"] - alone.of(job)["logprob"]).max() < 0.05
