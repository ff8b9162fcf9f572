"""Many workers with one model behind one object: routing, a bounded queue, cancellation, recovery, clean shutdown."""

import itertools
import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from engine.errors import ConfigError, EngineError, JobTimeout, PoolClosed, QueueFull, WorkerDied
from engine.models.gguf import read_model
from engine.models.memory import check_fits
from engine.pool import messages as m
from engine.pool.crew import Crew
from engine.pool.job import Job, new_id
from engine.pool.member import Member, Startup
from engine.pool.placement import cores_for, threads_for
from engine.pool.routing import best_member, remember
from engine.results import Completion
from engine.settings import Settings
from engine.specs import LoadMode, PoolSpec, Request, Sampling

_MOST_DEATHS = 3


class WorkerInfo(NamedTuple):
    """One worker at this moment; cpus empty: all that the process may use."""

    pid: int
    cpus: tuple[int, ...]
    num_running: int
    num_waiting: int


class Pool:
    """One model in several processes; n_ctx counts tokens of one sequence, PoolSpec has the meaning of each parameter.

    `build` is a folder of llama.cpp libraries, of the version that the Python package binds, to use instead of its own.
    The constructor returns when every worker has loaded the model; `on_progress` meanwhile gets 0 to 1. `on_opening` is
    given, before that, a function that ends the load from any thread: the constructor then raises PoolClosed. Raises
    ModelError, MemoryRefused or ConfigError. Use as a context manager or close() it. All methods may be called from
    any thread.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        instances: int = 1,
        threads: int | None = None,
        threads_batch: int | None = None,
        parallel: int = 8,
        n_ctx: int = 512,
        n_batch: int | None = None,
        n_ubatch: int | None = None,
        share_weights: bool = False,
        pin: bool = False,
        flash_attn: bool | None = None,
        type_k: str = "f16",
        type_v: str = "f16",
        n_gpu_layers: int = 0,
        load: LoadMode = "mmap",
        build: str = "",
        on_progress: Callable[[float], object] | None = None,
        on_opening: Callable[[Callable[[], None]], object] = lambda _abort: None,
    ) -> None:
        self.spec = PoolSpec(
            instances=instances,
            threads=threads,
            threads_batch=threads_batch,
            parallel=parallel,
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_ubatch=n_ubatch,
            share_weights=share_weights,
            pin=pin,
            flash_attn=flash_attn,
            type_k=type_k,
            type_v=type_v,
            n_gpu_layers=n_gpu_layers,
            load=load,
        )
        self.model = str(Path(model).expanduser().resolve())
        self.file = read_model(Path(self.model))
        check_fits(self.file, self.spec)
        self.threads = threads or threads_for(instances)
        self._settings = Settings.from_environment()
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._waiting: deque[tuple[int, Job]] = deque()
        self._numbers = itertools.count(1)
        self._is_closed = self._is_paused = False
        self._num_deaths = 0
        orders = partial(_load, self.model, self.spec, self.threads, self._settings.prefill_share)
        self._crew = Crew(instances, orders, self, on_progress or (lambda _fraction: None), build)
        on_opening(self._crew.abort)
        self._crew.start_all()
        member = self._crew.alive[0]
        self.vocabulary = member.vocabulary()
        self.n_ctx = member.ready.n_ctx
        self.load_s = max(member.ready.load_s for member in self._crew.alive)
        self.startup: Startup = max((member.startup for member in self._crew.alive), key=sum)
        self.chat_template = member.ready.chat_template
        self.description = member.ready.description

    @classmethod
    def from_profile(cls, path: str | Path, model: str | Path = "") -> Self:
        """Open the pool that a profile describes: JSON with "model" (a path, or given here) and "pool" (a PoolSpec).

        Raises ConfigError for a file that is no profile, and what the constructor raises.
        """
        try:
            values = json.loads(Path(path).expanduser().read_bytes())
            return cls(model or values["model"], **PoolSpec.from_dict(values["pool"]).to_dict())
        except (OSError, ValueError, TypeError, LookupError) as error:
            if isinstance(error, EngineError):
                raise
            raise ConfigError(f"{path}: is no profile ({error!r})") from error

    # jobs

    def submit(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        max_tokens: int = 128,
        top_k: int = 0,
        stop: str | Sequence[str] = (),
        prompt_logprobs: bool = False,
        reuse_prefix: bool = True,
        generated: int = 0,
        job_id: str | None = None,
    ) -> Job:
        """Start a job; Request has the meaning of each parameter, `job_id` a UUIDv7 to use instead of a new one.

        Raises ConfigError, QueueFull when too many jobs wait, PoolClosed. What is wrong with the prompt itself is
        raised by the job.
        """
        request = Request(
            max_tokens=max_tokens,
            top_k=top_k,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            prompt_logprobs=prompt_logprobs,
            reuse_prefix=reuse_prefix,
            generated=generated,
        )
        given = prompt if isinstance(prompt, str) else [int(token) for token in prompt]
        job = Job(
            job_id or new_id(),
            given,
            sampling or Sampling(),
            request,
            self.vocabulary,
            cancel=self._cancel,
            position=self._position,
        )
        with self._lock:
            self._check_open()
            if len(self._waiting) >= self._settings.max_queue:
                raise QueueFull(f"{len(self._waiting):,} jobs wait already, no more are allowed: wait, then try again")
            self._waiting.append((next(self._numbers), job))
        self._dispatch()
        return job

    def map(
        self,
        prompts: Iterable[str | Sequence[int]],
        sampling: Sampling | None = None,
        *,
        max_tokens: int = 128,
        top_k: int = 0,
        stop: str | Sequence[str] = (),
        prompt_logprobs: bool = False,
        reuse_prefix: bool = True,
    ) -> Iterator[Completion]:
        """Completions in the order of the prompts; takes prompts only as fast as the queue has room.

        Raises the error of the first job that fails; jobs not yet given back are cancelled when the iterator closes.
        """
        open_jobs: deque[Job] = deque()
        try:
            for prompt in prompts:
                with self._room:
                    self._room.wait_for(lambda: self._is_closed or len(self._waiting) < self._settings.max_queue)
                open_jobs.append(
                    self.submit(
                        prompt,
                        sampling,
                        max_tokens=max_tokens,
                        top_k=top_k,
                        stop=stop,
                        prompt_logprobs=prompt_logprobs,
                        reuse_prefix=reuse_prefix,
                    )
                )
                while open_jobs and open_jobs[0].done():
                    yield open_jobs.popleft().result()
            while open_jobs:
                yield open_jobs.popleft().result()
        finally:
            for job in open_jobs:
                job.cancel()

    def _dispatch(self) -> None:
        """Give waiting jobs to workers that have room for them."""
        with self._lock:
            while self._waiting and not self._is_paused:
                room = [member for member in self._crew.alive if len(member.jobs) < self._most_jobs]
                if not room:
                    return
                number, job = self._waiting.popleft()
                reusable = job.prompt if job.request.reuse_prefix else []
                member = best_member(room, reusable, self.vocabulary, self.spec.parallel)
                member.jobs[number] = job
                member.send(m.Start(number, job.prompt, job.sampling, job.request, job.submitted))
            self._room.notify_all()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside the block the workers take jobs but compute nothing; at its end all of them go on at the same time."""
        members = self._crew.alive
        for member in members:
            member.send(m.Hold(True))
        try:
            yield
        finally:
            for member in members:
                member.send(m.Hold(False))

    @property
    def _most_jobs(self) -> int:
        """Jobs that one worker has at a time: all its sequences, and a few that take the next free ones at once."""
        return self.spec.parallel + max(1, self.spec.parallel // 4)

    def pause(self) -> None:
        """Begin no job until resume(): those that run go on, and submit still takes new ones."""
        self._is_paused = True

    def resume(self) -> None:
        """Begin what pause() kept waiting."""
        self._is_paused = False
        self._dispatch()

    @property
    def num_open(self) -> int:
        """Jobs that wait or run."""
        with self._lock:
            return len(self._waiting) + sum(len(member.jobs) for member in self._crew.alive)

    def _cancel(self, job: Job) -> None:
        with self._lock:
            for entry in self._waiting:
                if entry[1] is job:
                    self._waiting.remove(entry)
                    self._room.notify_all()
                    break
            else:
                self._cancel_at_worker(job)
                return
        job.on_cancelled()

    def _cancel_at_worker(self, job: Job) -> None:
        for member in self._crew.alive:
            for number, running in member.jobs.items():
                if running is job:
                    member.send(m.Cancel(number))

    def _position(self, job: Job) -> int:
        with self._lock:
            ahead = [
                number
                for member in self._crew.alive
                for number, other in member.jobs.items()
                if not other.is_started and other is not job
            ]
            mine = next((number for number, waiting in self._waiting if waiting is job), None)
            if mine is None:
                mine = next((n for member in self._crew.alive for n, other in member.jobs.items() if other is job), 0)
            return sum(number < mine for number in (*ahead, *(number for number, _job in self._waiting)))

    # what the crew tells

    def on_message(self, member: Member, message: m.ToPool) -> None:
        """A worker said something (for the crew)."""
        match message:
            case m.Decoded():
                for steps in message.steps:
                    job = member.jobs.get(steps.job)
                    if job is not None:
                        job.on_steps(steps)
            case m.Started():
                job = member.jobs.get(message.job)
                if job is not None:
                    self._remember(member, job, message.prompt_ids)
                    job.on_started(message, member.ready.load_s)
            case m.Ended():
                with self._lock:
                    job = member.jobs.pop(message.job, None)
                if job is not None:
                    self._num_deaths = 0
                    self._remember(member, job, [*(job.prompt_ids or ()), *job.steps.ids])
                    job.on_ended(message)
                self._dispatch()
            case m.Answer():
                member.answered(message)

    def _remember(self, member: Member, job: Job, ids: Sequence[int]) -> None:
        if self.spec.instances > 1:
            remember(member, job.id, ids, self.vocabulary, self.spec.parallel)

    def on_death(self, member: Member, index: int) -> None:
        """Fail or retry the jobs of a dead worker, then put another in its place (for the crew)."""
        with self._lock:
            if self._is_closed:
                return
            error = member.died()
            lost, member.jobs = member.jobs, {}
            retried = [(number, job) for number, job in lost.items() if not len(job.steps) and job.num_tries == 0]
            for entry in retried:
                entry[1].num_tries += 1
            self._waiting.extendleft(reversed(retried))
            self._num_deaths += 1
            is_hopeless = self._num_deaths > _MOST_DEATHS
        for number, job in lost.items():
            if (number, job) not in retried:
                job.fail(error)
        if is_hopeless:
            self._give_up(PoolClosed(f"{self._num_deaths} workers ended one after the other; the last {error}"))
            return
        try:
            self._crew.start(index)
        except (EngineError, OSError) as failure:
            self._give_up(PoolClosed(f"a worker ended and no other could be started: {failure}"))
            return
        self._dispatch()

    def _give_up(self, error: PoolClosed) -> None:
        jobs = self._shut()
        for job in jobs:
            job.fail(error)

    # questions to the workers

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`, BOS as the GGUF says; `special` parses written control tokens.

        Raises WorkerDied, PoolClosed.
        """
        return self._ask(lambda call: m.Tokenize(call, text, special)).ids

    def render_chat(self, messages: Sequence[dict[str, str]]) -> tuple[str, list[int]]:
        """Text and ids of `messages` (role, content) in the model's own template. Raises ConfigError without one."""
        answer = self._ask(lambda call: m.RenderChat(call, list(messages)))
        return answer.text, answer.ids

    def _ask(self, make: Callable[[int], m.Message]) -> m.Answer:
        with self._lock:
            self._check_open()
            members = self._crew.alive
        if not members:
            raise WorkerDied("the worker has ended and another is being started: try again in a few seconds")
        return min(members, key=lambda member: len(member.jobs)).call(make).result()

    def measure(self, timeout: float | None = None) -> list[dict[str, float]]:
        """Each worker's own totals: pid; decode_s inside llama_decode, prefill_s those of them with chunks of
        prompts, loop_s around it; tokenise_s, distribution_s, sample_s outside; cpu_s of all threads, thread_s of the
        deciding one but for measuring, decode_cpu_s of that inside llama_decode (seconds); num_decodes,
        num_tokens; pss_bytes and private_bytes (NaN where the system does not tell).
        """
        futures = [member.call(m.Measure) for member in self._crew.alive]
        if wait(futures, timeout).not_done:
            raise JobTimeout(f"a worker gave no figures within {timeout:g} s: it is in a long step, or hangs")
        return [future.result().figures for future in futures]

    def workers(self) -> list[WorkerInfo]:
        """The workers that are alive."""
        with self._lock:
            return [
                WorkerInfo(
                    member.ready.pid,
                    tuple(member.load.cpus),
                    sum(job.is_started for job in member.jobs.values()),
                    sum(not job.is_started for job in member.jobs.values()),
                )
                for member in self._crew.alive
            ]

    # the end

    def close(self) -> None:
        """End all workers; jobs still open fail with PoolClosed. Safe to call twice."""
        for job in self._shut():
            job.fail(PoolClosed("the pool was closed while this job was open"))

    def _shut(self) -> list[Job]:
        """Stop everything; the jobs that were open, for their last word."""
        with self._lock:
            if self._is_closed:
                return []
            self._is_closed = True
            jobs = [job for _number, job in self._waiting]
            self._waiting.clear()
            for member in self._crew.alive:
                jobs.extend(member.jobs.values())
            self._room.notify_all()
        self._crew.close()
        return jobs

    def _check_open(self) -> None:
        if self._is_closed:
            raise PoolClosed("this pool is closed: open another")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _load(model: str, spec: PoolSpec, threads: int, prefill_share: int, index: int) -> m.Load:
    """What worker `index` is told; no method, so that the crew does not keep its pool alive."""
    return m.Load(
        protocol=m.PROTOCOL,
        model=model,
        spec=spec,
        threads=threads,
        threads_batch=spec.threads_batch or threads,
        cpus=cores_for(index, threads) if spec.pin else [],
        prefill_share=prefill_share,
    )
