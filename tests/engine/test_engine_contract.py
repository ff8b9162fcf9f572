"""The contract of engine.protocol.Engine: what every engine must do, asked of the pool, with llama.cpp and with
transformers in its workers, and of the fake of the tests."""

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from engine.errors import ConfigError, EngineError, JobTimeout, PoolClosed, PromptTooLong, QueueFull
from engine.jobs import Job
from engine.map_progress import MapProgress
from engine.opening import open_engine
from engine.protocol import Engine
from engine.settings import PREFIX
from engine.specs import PoolSpec, Sampling
from tests.fake_engine import open_fake

GREEDY = Sampling(temperature=0)
SPEC = PoolSpec(parallel=2, n_ctx=256, threads=1)
T = TypeVar("T")
Open = Callable[[PoolSpec], Engine]


@pytest.fixture(params=["pool", "transformers", "fake"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    """The kind of engine that is asked."""
    found: str = request.param
    return found


@pytest.fixture
def open_one(engine_kind: str, story_model: Path, story_folder: Path) -> Open:
    """Opens an engine of this kind."""
    if engine_kind == "transformers":
        return lambda spec: open_engine(str(story_folder), spec)
    return lambda spec: {"pool": open_engine, "fake": open_fake}[engine_kind](str(story_model), spec)


@pytest.fixture(scope="module")
def transformers_engine(story_folder: Path) -> Iterator[Engine]:
    """One for all tests, as PyTorch takes seconds to start."""
    with open_engine(str(story_folder), SPEC) as opened:
        yield opened


@pytest.fixture
def engine(engine_kind: str, open_one: Open, request: pytest.FixtureRequest) -> Iterator[Engine]:
    if engine_kind == "transformers":
        yield request.getfixturevalue("transformers_engine")
        return
    with open_one(SPEC) as opened:
        yield opened


def test_it_says_what_it_can_do(engine: Engine, engine_kind: str) -> None:
    decided = replace(SPEC, share_weights=False)  # where the caller leaves it open
    if engine_kind == "transformers":
        decided = replace(decided, dtype="float32", type_k="f32", type_v="f32")
    assert engine.spec == decided
    assert engine.capabilities.num_sequences == 2
    assert engine.capabilities.n_ctx >= 256
    assert len(engine.vocabulary) > 256
    assert sum(engine.startup) >= 0
    assert engine.num_open == 0


def test_a_job_yields_its_steps_to_early_and_late_readers_and_then_its_completion(engine: Engine) -> None:
    job = engine.submit("Once upon", Sampling(seed=1), max_tokens=12, top_k=4)
    seen = [step.id for step in job]
    done = job.result(60)
    assert seen == list(done.ids) == [step.id for step in job]
    assert (done.finish_reason, len(seen)) in {("length", 12), ("stop", len(seen))}
    assert list(done.prompt_ids) == engine.tokenize("Once upon")
    assert done.text == engine.vocabulary.join(list(done.ids)).decode("utf-8", "replace")


def test_figures_are_of_one_distribution(engine: Engine) -> None:
    for step in engine.submit("Once upon", GREEDY, max_tokens=6, top_k=5).result(60).steps:
        assert step.top is not None and step.logprob is not None and step.rank is not None
        assert [one.logprob for one in step.top] == sorted((one.logprob for one in step.top), reverse=True)
        assert step.logprob == pytest.approx(step.top[step.rank - 1].logprob, abs=1e-5)


def test_without_candidates_there_are_no_figures(engine: Engine) -> None:
    (step,) = engine.submit("Once", max_tokens=1).result(60).steps
    assert (step.logprob, step.rank, step.entropy, list(step.top)) == (None, None, None, [])


def test_the_same_seed_gives_the_same_tokens(engine: Engine) -> None:
    first, second = (
        engine.submit("Once", Sampling(seed=5), max_tokens=10, reuse_prefix=False).result(60).ids for _ in range(2)
    )
    assert first == second


def test_a_prompt_is_scored_without_any_token_generated(engine: Engine) -> None:
    done = engine.submit("Once upon a time", max_tokens=0, top_k=2, prompt_logprobs=True).result(60)
    assert len(done.steps) == 0
    scored = done.prompt_steps.records["logprob"][1:]
    assert len(scored) == len(done.prompt_ids) - 1
    assert np.all(scored <= 0)


def test_a_stop_string_ends_the_text_before_it(engine: Engine) -> None:
    whole = engine.submit("Once upon", GREEDY, max_tokens=24, reuse_prefix=False).result(60).text
    stop = whole[8:11]
    done = engine.submit("Once upon", GREEDY, max_tokens=24, stop=stop, reuse_prefix=False).result(60)
    assert done.finish_reason == "stop"
    assert done.text == whole[: whole.index(stop)]


def test_a_banned_token_is_not_drawn(engine: Engine) -> None:
    first = engine.submit("Once upon", GREEDY, max_tokens=1).result(60).ids[0]
    banned = Sampling(temperature=0, logit_bias=((first, float("-inf")),))
    assert engine.submit("Once upon", banned, max_tokens=1).result(60).ids[0] != first


def test_a_cancelled_job_gives_the_part_it_has(engine: Engine) -> None:
    with engine.held():
        job = engine.submit("Once", max_tokens=200)
        assert job.cancel()
    done = job.result(60)
    assert done.finish_reason == "cancelled"
    assert len(done.steps) < 200
    assert not job.cancel()


def test_a_job_that_waits_can_be_timed_out_on_and_goes_on(engine: Engine) -> None:
    with engine.held():
        job = engine.submit("Once", max_tokens=2)
        with pytest.raises(JobTimeout):
            job.result(0.01)
    assert len(job.result(60).steps) >= 1


def in_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, run in a thread of its own: the browser of other tests has a loop in this one."""
    with futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result(60)


def test_a_job_can_be_awaited_and_iterated_asynchronously(engine: Engine) -> None:
    async def ask() -> None:
        job = engine.submit("Once upon", Sampling(seed=1), max_tokens=12)
        seen = [step.id async for step in job]
        done = await job
        assert seen == list(done.ids) == [step.id async for step in job]
        several = [engine.submit("Once", max_tokens=3) for _ in range(4)]
        assert [one.id for one in await asyncio.gather(*several)] == [job.id for job in several]
        with pytest.raises(EngineError):
            await engine.submit([len(engine.vocabulary) + 5], max_tokens=1)

    in_loop(ask())


def test_cancelling_the_task_that_awaits_a_job_cancels_it(engine: Engine) -> None:
    with engine.held():
        job = engine.submit("Once", max_tokens=200)
        with pytest.raises(TimeoutError):
            in_loop(asyncio.wait_for(wait_for(job), 0.05))
    assert job.result(60).finish_reason == "cancelled"


def test_a_shielded_job_outlives_its_task(engine: Engine) -> None:
    async def ask() -> object:
        with engine.held():
            job = engine.submit("Once", Sampling(seed=1), max_tokens=20)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(job), 0.05)
        return (await job).finish_reason

    assert in_loop(ask()) != "cancelled"


def test_a_job_goes_on_where_the_task_that_iterates_it_is_cancelled(engine: Engine) -> None:
    async def ask(job: Job) -> None:
        task = asyncio.create_task(_steps_of(job))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with engine.held():
        job = engine.submit("Once", Sampling(seed=1), max_tokens=20)
        in_loop(ask(job))
    assert job.result(60).finish_reason != "cancelled"
    assert not job._listeners


def test_asyncio_wait_is_told_what_it_takes(engine: Engine) -> None:
    async def ask() -> None:
        jobs = [engine.submit("Once", max_tokens=2) for _ in range(3)]
        with pytest.raises(ConfigError, match=r"asyncio\.ensure_future\(job\)"):
            await asyncio.wait(jobs)  # type: ignore[type-var]
        done, pending = await asyncio.wait([asyncio.ensure_future(job) for job in jobs])
        assert (len(done), pending) == (3, set())
        assert {(await one).id for one in asyncio.as_completed(jobs)} == {job.id for job in jobs}

    in_loop(ask())


def test_a_job_shows_its_state(engine: Engine) -> None:
    with engine.held():
        job = engine.submit("Once", Sampling(seed=1), max_tokens=1)
        assert repr(job) in {f"<Job {job.id}: {state}, 0 tokens>" for state in ("waiting", "running")}
    reason = job.result(60).finish_reason
    assert repr(job) == f"<Job {job.id}: {reason}, 1 token>"
    failed = engine.submit([len(engine.vocabulary) + 5], max_tokens=1)
    error = failed.exception(60)
    assert repr(failed) == f"<Job {failed.id}: {type(error).__name__}>"


async def wait_for(job: Job) -> object:
    return await job


def test_a_loop_that_ended_early_leaves_the_job_alone(engine: Engine) -> None:
    async def read_one(job: Job) -> int:
        async for step in job:
            return step.id
        raise AssertionError

    job = engine.submit("Once", Sampling(seed=1), max_tokens=20)
    first = in_loop(read_one(job))
    assert job.result(60).ids[0] == first


def test_a_job_works_where_a_concurrent_future_does(engine: Engine) -> None:
    jobs = [engine.submit("Once", max_tokens=number) for number in (3, 1, 2)]
    assert set(futures.as_completed(jobs, timeout=60)) == set(jobs)
    assert futures.wait(jobs, timeout=60).done == set(jobs)
    failed = engine.submit([len(engine.vocabulary) + 5], max_tokens=1)
    assert futures.wait([failed], timeout=60, return_when=futures.FIRST_EXCEPTION).done == {failed}
    assert isinstance(failed.exception(0), EngineError)
    assert not any(job.running() or job.cancelled() for job in (*jobs, failed))


def test_a_callback_is_called_once_wherever_it_is_added(engine: Engine) -> None:
    called = list[str]()
    ended = threading.Event()
    job = engine.submit("Once", max_tokens=3)
    job.add_done_callback(lambda one: called.append(one.id))
    job.add_done_callback(lambda _one: ended.set())
    job.result(60)
    assert ended.wait(60)
    job.add_done_callback(lambda one: called.append(one.id))
    assert called == [job.id, job.id]


class Unheard(BaseException):
    """An exception that `except Exception` does not catch."""


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, Unheard, ValueError])
def test_nothing_that_a_callback_raises_stops_later_answers(engine: Engine, kind: type[BaseException]) -> None:
    def fail(*_: object) -> None:
        raise kind("by a callback")

    with engine.held():
        job = engine.submit("Once", max_tokens=3)
        job.add_done_callback(fail)
        job.add_listener(fail)
    assert len(job.result(60).steps) >= 1
    assert len(engine.submit("Once", max_tokens=3).result(60).steps) >= 1


async def _steps_of(job: Job) -> list[object]:
    return [step async for step in job]


async def _completion_of(job: Job) -> object:
    return await job


WAYS_TO_WAIT: dict[str, Callable[[Job], object]] = {
    "result": lambda job: job.result(1),
    "for": list,
    "await": lambda job: asyncio.run(_completion_of(job)),
    "async for": lambda job: asyncio.run(_steps_of(job)),
}


@pytest.mark.parametrize("way", WAYS_TO_WAIT)
def test_a_callback_may_not_wait_for_the_engine(engine: Engine, way: str) -> None:
    errors = list[EngineError]()
    ended = threading.Event()
    with engine.held():
        other = engine.submit("Once", max_tokens=100)
        job = engine.submit("Once", max_tokens=1)

        def wait(_job: object) -> None:
            try:
                WAYS_TO_WAIT[way](other)
            except EngineError as error:
                errors.append(error)
            ended.set()

        job.add_done_callback(wait)
    assert ended.wait(60)
    assert errors and not isinstance(errors[0], JobTimeout)


def test_many_prompts_come_back_in_their_order(engine: Engine) -> None:
    prompts = [f"{number} was a number" for number in range(12)]
    found = list(engine.map(prompts, GREEDY, max_tokens=3))
    assert [list(done.prompt_ids) for done in found] == [engine.tokenize(prompt) for prompt in prompts]


def test_a_failing_prompt_is_named_or_stands_in_the_place_of_its_completion(engine: Engine) -> None:
    prompts = ["Once", "long " * 600, "upon"]
    with pytest.raises(PromptTooLong, match=r"prompts\[1\]"):
        list(engine.map(prompts, max_tokens=1))
    found = list(engine.map(prompts, max_tokens=1, return_exceptions=True))
    assert [isinstance(one, PromptTooLong) for one in found] == [False, True, False]
    with pytest.raises(ConfigError):
        engine.map("Once")


def test_a_map_tells_its_progress(engine: Engine) -> None:
    told = list[MapProgress]()
    prompts = [*["Once"] * 11, "long " * 600]
    found = list(engine.map(prompts, GREEDY, max_tokens=40, return_exceptions=True, progress=told.append))
    num_tokens = sum(len(done.ids) for done in found if not isinstance(done, EngineError))
    assert told[-1] == MapProgress(12, 1, num_tokens, 12)
    assert told == sorted(told)
    list(engine.map(iter(prompts[:3]), GREEDY, max_tokens=2, progress=told.append))
    assert told[-1].total is None


def test_a_map_shows_its_progress_on_standard_error(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    list(engine.map(["Once"] * 4, max_tokens=2, progress=True))
    list(engine.map((prompt for prompt in ["Once"]), max_tokens=2, progress=True))
    list(engine.map(["Once"] * 4, max_tokens=2))
    lines = capsys.readouterr().err.splitlines()
    ends = [line for line in lines if re.search(r" tok/s, in \d+ s$", line)]
    assert [line.partition(",")[0] for line in ends] == ["4 of 4 prompts", "1 prompt"]
    assert lines[-1] == ends[-1]


def test_an_interrupt_while_a_map_waits_cancels_its_jobs(engine: Engine) -> None:
    def interrupt(_now: MapProgress) -> None:
        raise KeyboardInterrupt

    before = engine.measure(60)[0]["num_tokens"]
    with engine.held():
        with pytest.raises(KeyboardInterrupt):
            list(engine.map(["Once"] * 4, never_ending(engine), max_tokens=200, progress=interrupt))
        later = engine.submit("Once", max_tokens=1)
    assert later.result(60).steps
    assert engine.measure(60)[0]["num_tokens"] - before < 200


def never_ending(engine: Engine) -> Sampling:
    ends = [token for token in range(len(engine.vocabulary)) if engine.vocabulary.is_end(token)]
    return Sampling(temperature=0, logit_bias=tuple((token, float("-inf")) for token in ends))


def test_a_map_takes_a_bounded_number_of_prompts_ahead_of_a_slow_one(engine: Engine) -> None:
    num_taken = 0

    def prompts() -> Iterator[list[int]]:
        nonlocal num_taken
        for length in (1, *[engine.capabilities.n_ctx] * 60):
            num_taken += 1
            yield [97] * length

    found = engine.map(prompts(), never_ending(engine), max_tokens=200)
    assert len(next(found).ids) == 200
    assert num_taken <= 8 * engine.capabilities.num_sequences + 1
    assert len(list(found)) == 60


def test_a_full_queue_refuses_a_job(open_one: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "MAX_QUEUE", "3")
    with open_one(PoolSpec(parallel=1, n_ctx=256, threads=1)) as engine:
        engine.pause()
        jobs = [engine.submit("Once", max_tokens=1) for _ in range(3)]
        with pytest.raises(QueueFull):
            engine.submit("Once", max_tokens=1)
        assert engine.num_open == 3
        assert [job.queue_position for job in jobs] == [0, 1, 2]
        engine.resume()
        assert all(job.result(60) for job in jobs)


def test_paused_jobs_start_once_it_is_resumed(engine: Engine) -> None:
    engine.pause()
    job = engine.submit("Once", max_tokens=1)
    with pytest.raises(JobTimeout):
        job.result(0.05)
    assert not job.is_started
    engine.resume()
    assert job.result(60).steps


def test_text_becomes_ids_and_ids_the_text_again(engine: Engine) -> None:
    text = "The king's daughter – été"
    ids = engine.tokenize(text)
    assert engine.vocabulary.join(ids).decode().strip() == text
    assert engine.submit(ids, max_tokens=1).result(60).prompt_ids == tuple(ids)


@pytest.mark.parametrize("prompt", [b"bytes", 7, [1, "a"], [-1], [1 << 40], None])
def test_a_prompt_of_a_wrong_type_is_refused(engine: Engine, prompt: object) -> None:
    with pytest.raises(ConfigError):
        engine.submit(prompt)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        engine.submit("Once", "hot")  # type: ignore[arg-type]


def test_ids_beyond_the_vocabulary_end_the_job_with_an_error(engine: Engine) -> None:
    with pytest.raises(EngineError):
        engine.submit([len(engine.vocabulary) + 5], max_tokens=1).result(60)


def test_its_totals_grow(engine: Engine) -> None:
    before = engine.measure(60)
    engine.submit("Once", max_tokens=4).result(60)
    after = engine.measure(60)
    assert len(before) == len(after) == len(engine.workers()) == SPEC.instances
    assert before[0].keys() == after[0].keys() >= {"pid", "decode_s", "loop_s", "num_decodes", "pss_bytes"}
    assert after[0]["num_tokens"] > before[0]["num_tokens"]


def test_it_says_why_it_ended(open_one: Open) -> None:
    engine = open_one(SPEC)
    assert engine.ending is None
    engine.close("the first reason")
    engine.close("another")
    assert str(engine.ending) == "the first reason"


def test_closing_ends_open_jobs_with_the_reason_and_takes_no_more(open_one: Open) -> None:
    engine = open_one(SPEC)
    with engine.held():
        job = engine.submit("Once", max_tokens=100)
        engine.close("the test is over")
    with pytest.raises(PoolClosed, match="the test is over"):
        job.result(60)
    engine.close()
    asks: tuple[Callable[[], object], ...] = (
        lambda: engine.submit("Once"),
        lambda: engine.tokenize("Once"),
        lambda: list(engine.map(["Once"])),
        lambda: engine.check_sampling(Sampling(grammar='root ::= "not seen before"')),
    )
    for ask in asks:
        with pytest.raises(PoolClosed):
            ask()
