"""Many workers with one model behind one object: routing, a bounded queue, cancellation, recovery, clean shutdown."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Self, overload

from engine.errors import ConfigError, EngineError, PoolClosed
from engine.llama.sandbox import Sandbox
from engine.models.gguf import read_model
from engine.models.memory import check_fits
from engine.models.mistaken import check_is_file
from engine.pool import messages as m
from engine.pool.crew import Crew
from engine.pool.in_order import completions
from engine.pool.job import Job, new_id
from engine.pool.job_queue import JobQueue
from engine.pool.long_texts import LONGEST_FOR_WORKER, LongTexts
from engine.pool.member import Member, Startup
from engine.pool.placement import cores_for, threads_for
from engine.results import Completion
from engine.settings import Settings
from engine.specs import (
    MAX_PROMPT_CHARACTERS,
    LoadMode,
    PoolSpec,
    Refusing,
    Request,
    Sampling,
    given_prompt,
    plain_text,
    refusing,
)

_MESSAGES = '[{"role": "user", "content": "Hello"}]'
_MOST_DEATHS = 3
_MOST_CONTROL_TOKENS = 8192
"""llama.cpp's time for a text grows with the square of them: 0.2 s for these."""


class WorkerInfo(NamedTuple):
    """One worker at this moment; cpus empty: all that the process may use.

    phase: what its loop is at (engine.llama.phase.Phase, in lower case); phase_s: for how many seconds at least.
    threads: that compute a step, threads_batch: that compute a prompt; both move where the pool was given no number.
    """

    pid: int
    cpus: tuple[int, ...]
    num_running: int
    num_waiting: int
    phase: str
    phase_s: float
    threads: int
    threads_batch: int

    @classmethod
    def of(cls, member: Member, jobs: Sequence[Job]) -> Self:
        """What a worker that has these jobs is at."""
        num_running = sum(job.is_started for job in jobs)
        return cls(
            pid=member.ready.pid,
            cpus=tuple(member.load.cpus),
            num_running=num_running,
            num_waiting=len(jobs) - num_running,
            phase=member.watch.phase.name.lower(),
            phase_s=member.watch.phase_s,
            threads=member.in_use.threads,
            threads_batch=member.in_use.threads_batch,
        )


class Pool(metaclass=Refusing):
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
        self.model = str(_path(model))
        self.file = read_model(Path(self.model))
        check_fits(self.file, self.spec)
        self.threads = threads or threads_for(instances)
        settings = Settings.from_environment()
        orders = partial(_load, self.model, self.spec, self.threads, settings.prefill_share)
        self._crew = crew = Crew(instances, orders, self, on_progress or (lambda _fraction: None), build)
        self._jobs = JobQueue(
            lambda: crew.alive, num_workers=instances, parallel=parallel, most_waiting=settings.max_queue
        )
        self._sandbox = Sandbox()
        self._long_texts = LongTexts(self.model)
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

    @refusing
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
        raised by the job. A new grammar or schema is checked first, for at most two seconds, and a text of more than
        20,000 characters tokenised, for at most ten.
        """
        request = Request(
            max_tokens=max_tokens,
            top_k=top_k,
            stop=stop,  # type: ignore[arg-type]  # made a tuple there
            prompt_logprobs=prompt_logprobs,
            reuse_prefix=reuse_prefix,
            generated=generated,
        )
        job = self._job(prompt, sampling, request, job_id)
        self._jobs.add(job)
        return job

    def _job(
        self, prompt: str | Sequence[int], sampling: Sampling | None, request: Request, job_id: str | None = None
    ) -> Job:
        """A job of this pool that is in no queue yet; raises ConfigError."""
        if not isinstance(sampling, Sampling | None):
            raise ConfigError(f"sampling = {sampling!r}: must be a Sampling; Sampling.from_dict makes one")
        given, sampling = given_prompt(prompt), sampling or Sampling()
        job = Job(
            job_id or new_id(),
            given,
            sampling,
            request,
            self.vocabulary,
            cancel=self._cancel,
            position=self._jobs.position,
            compiled=self._sandbox.compile(sampling),
        )
        job.sent = self._ids_if_long(given)
        return job

    def _ids_if_long(self, prompt: str | list[int]) -> str | list[int]:
        """A long text as ids, unless it has too many bytes for the context: that a worker says without tokenising."""
        if not isinstance(prompt, str) or len(prompt) <= LONGEST_FOR_WORKER:
            return prompt
        if self.vocabulary.fewest_tokens(prompt) > self.n_ctx + 1:
            return prompt
        return self._long_texts.tokenize(prompt, special=False)

    @overload
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
        return_exceptions: Literal[False] = False,
    ) -> Iterator[Completion]: ...
    @overload
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
        return_exceptions: bool,
    ) -> Iterator[Completion | EngineError]: ...
    @refusing
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
        return_exceptions: bool = False,
    ) -> Iterator[Completion | EngineError]:
        """Completions in the order of the prompts; takes prompts only as fast as the queue has room.

        Raises ConfigError for a single text, and the error of the first job that fails, its text beginning with
        prompts[INDEX]; with return_exceptions that error stands in the job's place and the others go on. Jobs not yet
        given back are cancelled when the iterator closes.
        """
        if isinstance(prompts, str | bytes) or not isinstance(prompts, Iterable):
            raise ConfigError(f"prompts = {prompts!r}: must be a list of prompts; for a single one use submit")
        request = Request(
            max_tokens=max_tokens,
            top_k=top_k,
            stop=stop,  # type: ignore[arg-type]  # made a tuple there
            prompt_logprobs=prompt_logprobs,
            reuse_prefix=reuse_prefix,
        )
        return completions(
            prompts, lambda prompt: self._job(prompt, sampling, request), self._jobs, is_failing=not return_exceptions
        )

    def _cancel(self, job: Job) -> None:
        """Cancel a job, which by this keeps its pool."""
        self._jobs.cancel(job)

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

    def pause(self) -> None:
        """Begin no job until resume(): those that run go on, and submit still takes new ones."""
        self._jobs.pause()

    def resume(self) -> None:
        """Begin what pause() kept waiting."""
        self._jobs.resume()

    @property
    def num_open(self) -> int:
        """Jobs that wait or run."""
        return self._jobs.num_open

    # what the crew tells

    def on_message(self, member: Member, message: m.ToPool) -> None:
        """A worker said something (for the crew)."""
        match message:
            case m.Decoded():
                self._jobs.on_decoded(member, message)
            case m.Started():
                self._jobs.on_started(member, message)
            case m.Ended():
                self._jobs.on_ended(member, message)
            case m.Answer():
                member.answered(message)
            case m.InUse():
                member.in_use = message
            case m.Failed():
                member.failure = message.text

    def on_death(self, member: Member, index: int) -> None:
        """Fail or retry the jobs of a dead worker, then put another in its place (for the crew)."""
        error = member.died()
        blamed = self._jobs.blamed(member)
        for job in self._jobs.take_back(member):
            job.fail(member.blamed() if job is blamed else error)
        self._jobs.dispatch()
        if self._crew.is_closed:
            return
        if self._jobs.num_deaths > _MOST_DEATHS:
            self._end(PoolClosed(f"{self._jobs.num_deaths} workers ended one after the other; the last {error}"))
            return
        try:
            self._crew.start(index)
        except Exception as failure:  # also what on_progress raises
            self._end(PoolClosed(f"a worker ended and no other could be started: {failure}"))
            return
        self._jobs.dispatch()

    # questions to the workers

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`, BOS as the GGUF says; `special` parses written control tokens.

        Raises ConfigError for what is no text, or has too many control tokens; WorkerDied, PoolClosed.
        """
        given = plain_text("text", text, MAX_PROMPT_CHARACTERS)
        return self._tokenize(given, special=bool(special))

    def _tokenize(self, text: str, *, special: bool, add_bos: bool = True) -> list[int]:
        if special and len(text) > _MOST_CONTROL_TOKENS:
            num = sum(text.count(name) for name in self.vocabulary.names.values() if name)
            if num > _MOST_CONTROL_TOKENS:
                raise ConfigError(f"this text has {num:,} control tokens; at most {_MOST_CONTROL_TOKENS:,} are allowed")
        if len(text) > LONGEST_FOR_WORKER:
            return self._long_texts.tokenize(text, special=special, add_bos=add_bos)
        return self._crew.ask(lambda call: m.Tokenize(call, text, special, add_bos)).ids

    def render_chat(self, messages: Sequence[dict[str, str]]) -> tuple[str, list[int]]:
        """Text and ids of `messages` (role, content) in the model's own template.

        Raises ConfigError without one, for one that fails or goes beyond a limit, and for what is no list of messages.
        """
        text, add_bos = self._sandbox.render_chat(self.chat_template, _given_messages(messages), self.vocabulary)
        return text, self._tokenize(text, special=True, add_bos=add_bos)

    def measure(self, timeout: float | None = None) -> list[dict[str, float]]:
        """Each worker's own totals: pid; decode_s inside llama_decode, prefill_s those of them with chunks of
        prompts, loop_s around it; tokenise_s, distribution_s, sample_s outside; cpu_s of all threads, thread_s of the
        deciding one but for measuring, decode_cpu_s of that inside llama_decode (seconds); num_decodes,
        num_tokens; pss_bytes and private_bytes (NaN where the system does not tell).
        """
        return self._crew.measure(timeout)

    def workers(self) -> list[WorkerInfo]:
        """The workers that are alive."""
        return [WorkerInfo.of(member, self._jobs.of(member)) for member in self._crew.alive]

    # the end

    def close(self, reason: str = "the pool was closed while this job was open") -> None:
        """End all workers; jobs still open fail with PoolClosed, which says the reason. Safe to call twice."""
        self._end(PoolClosed(reason))

    def _end(self, error: PoolClosed) -> None:
        jobs = self._jobs.close()
        self._crew.close()
        self._sandbox.close()
        self._long_texts.close()
        for job in jobs:
            job.fail(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _path(model: str | Path) -> Path:
    if not isinstance(model, str | Path) or "\0" in str(model):
        raise ConfigError(f"model = {model!r}: must be the path of a GGUF file")
    check_is_file(model)
    return Path(model).expanduser().resolve()


def _given_messages(messages: object) -> list[dict[str, str]]:
    """Messages as plain texts; raises ConfigError for what is no list of them."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise ConfigError(f"messages = {messages!r}: must be a list such as {_MESSAGES}")
    given = list(messages)
    for number, message in enumerate(given):
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise ConfigError(f"messages[{number}] = {message!r}: needs a role and a content, as in {_MESSAGES}")
    return [{plain_text("name", name): plain_text(name, text) for name, text in one.items()} for one in given]


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
