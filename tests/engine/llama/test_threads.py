"""Thread numbers in a real worker loop: their effect on logits, and when they stay as given."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from engine.llama import threads as measured
from engine.llama.context import Chunk, Context
from engine.llama.model import Model
from engine.llama.thread_controller import Decoded
from engine.llama.threads import IdleCores, Threads
from engine.specs import PoolSpec
from tests.engine.llama.test_moving import FIRST, order, running

NUM_PROMPT, NUM_SINGLE = 300, 16
Rows = npt.NDArray[np.float32]


def rows(model: Model, threads: int, *, flash_attn: bool) -> Rows:
    """Return the logits of a prompt's last token and the single tokens after it, (n, vocabulary)."""
    spec = PoolSpec(parallel=1, n_ctx=512, flash_attn=flash_attn)
    ids = np.random.default_rng(0).integers(3, model.num_vocab, NUM_PROMPT + NUM_SINGLE).tolist()
    context = Context(model, spec, 1, 1)
    context.set_threads(threads, threads)
    try:
        cuts = [0, *range(NUM_PROMPT, len(ids) + 1)]
        return np.array([decoded(context, ids[start:end], start) for start, end in pairwise(cuts)])
    finally:
        context.close()


def decoded(context: Context, ids: list[int], position: int) -> Rows:
    context.fill([Chunk(0, ids, position, 1)])
    assert context.decode() == 0
    (row,) = context.logits(1)
    return np.array(row.logits)


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_without_flash_attention_no_number_of_threads_moves_a_logit(model: Model, threads: int) -> None:
    assert np.array_equal(rows(model, 1, flash_attn=False), rows(model, threads, flash_attn=False))


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_flash_attention_splits_a_long_text_over_threads(model: Model, threads: int) -> None:
    """Prompts stay equal. This is why jobs that must be reproducible have a fixed number of threads."""
    one, more = rows(model, 1, flash_attn=True), rows(model, threads, flash_attn=True)
    assert np.array_equal(one[0], more[0])
    assert not np.array_equal(one[1:], more[1:])
    assert np.abs(one[1:] - more[1:]).max() < 0.5, "rounding of 16-bit values, nothing more"


class Counting:
    """Context that only records the numbers it was set to."""

    def __init__(self) -> None:
        self.set: list[tuple[int, int]] = []

    def set_threads(self, threads: int, threads_batch: int) -> None:
        self.set.append((threads, threads_batch))


def decode(threads: Threads, num: int, *, num_tokens: int = 1, is_prompt: bool = False, is_exact: bool = False) -> None:
    """Run `num` decodes that take as long with one thread as with two."""
    for number in range(num):
        threads.choose(num_tokens, is_prompt=is_prompt, is_exact=is_exact)
        threads.decoded(0.004, threads._read_at + 0.004 * (number % 2 + 1))


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate a machine on which nothing else runs: processor time as of two threads, and no core seen idle."""
    monkeypatch.setattr(measured, "_usage", lambda: (0.0, 0))
    monkeypatch.setattr(IdleCores, "lately", lambda _self, _now: 0.0)
    yield


def test_a_thread_that_gains_nothing_is_given_up_and_a_change_is_reported_once() -> None:
    context = Counting()
    threads = Threads(context, PoolSpec(), 2, 2)  # type: ignore[arg-type]
    decode(threads, 50)
    assert threads.in_use == (1, 2)
    assert context.set == [(1, 1)]
    decode(threads, 3, is_exact=True)
    assert context.set == [(1, 1), (2, 2)], "one that must come out the same has the given number"
    assert threads.mostly_since({}, is_prompt=False) == 1
    assert threads.mostly_since({}, is_prompt=True) is None


@pytest.mark.parametrize("spec", [PoolSpec(threads=2), PoolSpec(threads=2, threads_batch=4)])
def test_a_number_that_is_given_is_kept(spec: PoolSpec) -> None:
    context = Counting()
    given = 2, spec.threads_batch or 2
    threads = Threads(context, spec, *given)  # type: ignore[arg-type]
    decode(threads, 50)
    decode(threads, 50, num_tokens=64, is_prompt=True)
    assert (threads.in_use, context.set) == (given, [])
    assert threads.num_decodes == {(False, 2): 50, (True, given[1]): 50}


def test_threads_given_for_batches_alone_are_kept_for_them() -> None:
    context = Counting()
    threads = Threads(context, PoolSpec(threads_batch=2), 2, 2)  # type: ignore[arg-type]
    decode(threads, 50)
    decode(threads, 50, num_tokens=64, is_prompt=True)
    assert threads.in_use == (1, 2)
    assert threads.num_decodes[True, 2] == 50


@pytest.mark.parametrize("reuse_prefix", [False, True])
def test_jobs_that_must_come_out_the_same_are_computed_with_the_given_number(model: Model, reuse_prefix: bool) -> None:
    made = order(FIRST, 40)
    request = replace(made.request, reuse_prefix=reuse_prefix)
    with running(model, made._replace(request=request)) as (runner, reporter):
        runner.threads = Threads(runner.context, PoolSpec(), 2, 2)
        ends_with = []
        while not runner.is_idle:
            runner.step()
            ends_with.append(runner.threads._set)
        assert reporter.over == [FIRST]
        assert set(ends_with) == ({(2, 2)} if not reuse_prefix else {(1, 1), (2, 2)})


def test_idle_cores_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    idle = IdleCores()
    first = idle._read_at
    assert np.isnan(idle.lately(first + 0.1)), "not known before the first reading"
    assert -0.1 <= idle.lately(first + 1.0) <= len(idle._names) + 0.1


def test_decoded_has_unknown_figures_where_the_system_does_not_tell() -> None:
    assert np.isnan(Decoded(0.1).cores_used) and np.isnan(Decoded(0.1).idle_cores)
