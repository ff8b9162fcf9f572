"""Engine on a server with an OpenAI-compatible API: its requests run in one event loop, and feed the same jobs."""

import asyncio
import random
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Literal, Self, Unpack, overload

from engine.backends.address import Address
from engine.backends.answer import Answer
from engine.backends.answer_stream import AnswerStream
from engine.backends.link import Link
from engine.backends.probing import Found, probe
from engine.backends.seen_vocabulary import SeenVocabulary
from engine.backends.server_loop import ServerLoop
from engine.backends.server_text import ServerText, checked_template
from engine.backends.waiting import WaitingJobs
from engine.chat_options import ChatOptions, given_messages
from engine.errors import ConfigError, EngineError, PoolClosed, PromptTooLong
from engine.ids import checked_id, new_id
from engine.jobs import Job
from engine.map_progress import OnProgress
from engine.pool.in_order import BATCH, checked_prompts, completions
from engine.protocol import Capabilities, Startup, WorkerInfo
from engine.results import Completion
from engine.settings import Settings
from engine.specs import (
    MAX_PROMPT_CHARACTERS,
    MAX_SEQUENCES,
    UNKNOWN_CTX,
    Origin,
    PoolSpec,
    Request,
    RequestOptions,
    Sampling,
    given_prompt,
)
from engine.validation import Refusing, given_spec, plain_text, refusing
from engine.vocabulary import Vocabulary


class ServerEngine(metaclass=Refusing):
    """A model on an external engine's server, with the methods of engine.Pool, which documents them.

    `found` has what the server says of itself, `capabilities` what follows for a job; a figure that it does not report
    is None in each step. num_sequences: requests that run at once, by default as many as the server says, else eight.
    """

    def __init__(self, link: Link, loop: ServerLoop, found: Found, num_sequences: int | None = None) -> None:
        self.model, self.found = link.address.root, found
        self.ending: PoolClosed | None = None
        self.capabilities: Capabilities = found.capabilities
        if num_sequences is not None:
            self.capabilities = found.capabilities._replace(num_sequences=num_sequences)
        self.vocabulary: Vocabulary = found.vocabulary
        self.chat_template = found.chat_template
        self.spec = PoolSpec(
            parallel=self.capabilities.num_sequences,
            n_ctx=min(max(n_ctx, 16), UNKNOWN_CTX - 1) if (n_ctx := self.capabilities.n_ctx) else UNKNOWN_CTX,
            share_weights=False,
        )
        self.threads, self.startup = 1, Startup(0.0, 0.0, 0.0)
        self._link, self._loop = link, loop
        self._text = ServerText(link, found.dialect, found.vocabulary, found.model)
        self._stream = AnswerStream(link, loop, self._text, found.form)
        self._running: dict[Job, asyncio.Task[None]] = {}
        self._waiting = WaitingJobs(
            self._start,
            num_sequences=self.capabilities.num_sequences,
            most_waiting=Settings.from_environment().max_queue,
        )

    @classmethod
    def connect(
        cls,
        address: Address,
        model: str = "",
        key: str = "",
        num_sequences: int | None = None,
        on_opening: Callable[[Callable[[], None]], object] = lambda _abort: None,
    ) -> Self:
        """Ask the server at an address what it can do, and return the engine.

        on_opening: called with a function that ends the connection from any thread; PoolClosed is raised then. Raises
        ConfigError for a model that it does not have, ServerFailed where it cannot be reached or used.
        """
        if num_sequences is not None and not 1 <= num_sequences <= MAX_SEQUENCES:
            raise ConfigError(f"num_sequences = {num_sequences:,}: must be from 1 to {MAX_SEQUENCES}")
        loop, link = ServerLoop(), Link(address, key)
        try:
            on_opening(lambda: loop.close(link.close()))
            return cls(link, loop, loop.call(probe(link, model)), num_sequences)
        except BaseException:
            loop.close(link.close())
            raise

    @property
    def num_open(self) -> int:
        """Number of jobs that wait or run."""
        return self._waiting.num_open

    # jobs

    @refusing
    def submit(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        generated: int = 0,
        forced: int = 0,
        job_id: str | None = None,
        origin: Origin | None = None,
        **options: Unpack[RequestOptions],
    ) -> Job:
        """Submit a job, as Pool.submit does.

        Fewer candidates are recorded than asked for where the server returns fewer, and no sampler stages. Raises
        ConfigError for what it cannot do: token ids, scores of a prompt, forced tokens, samplers that it lacks.
        """
        request = Request(**options, generated=generated, forced=forced)  # type: ignore[arg-type]  # stop becomes a tuple there
        self._waiting.check_open()
        job = self._job(prompt, sampling, request, job_id, origin)
        self._waiting.add(job)
        return job

    @overload
    def map(
        self,
        prompts: Iterable[str | Sequence[int]],
        sampling: Sampling | None = None,
        *,
        return_exceptions: Literal[False] = False,
        progress: OnProgress = False,
        **options: Unpack[RequestOptions],
    ) -> Iterator[Completion]: ...
    @overload
    def map(
        self,
        prompts: Iterable[str | Sequence[int]],
        sampling: Sampling | None = None,
        *,
        return_exceptions: bool,
        progress: OnProgress = False,
        **options: Unpack[RequestOptions],
    ) -> Iterator[Completion | EngineError]: ...
    @refusing
    def map(
        self,
        prompts: Iterable[str | Sequence[int]],
        sampling: Sampling | None = None,
        *,
        return_exceptions: bool = False,
        progress: OnProgress = False,
        **options: Unpack[RequestOptions],
    ) -> Iterator[Completion | EngineError]:
        """Yield completions in the order of the prompts, as Pool.map does."""
        prompts = checked_prompts(prompts)
        request = Request(**options)  # type: ignore[arg-type]  # stop becomes a tuple there
        self._waiting.check_open()
        return completions(
            prompts,
            lambda prompt: self._job(prompt, sampling, request, origin=BATCH),
            self._waiting,
            is_failing=not return_exceptions,
            num_sequences=self.capabilities.num_sequences,
            progress=progress,
        )

    def _job(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None,
        request: Request,
        job_id: str | None = None,
        origin: Origin | None = None,
    ) -> Job:
        """Create a job without queueing it; raises ConfigError."""
        sampling, origin = given_spec("sampling", sampling, Sampling), given_spec("origin", origin, Origin)
        can, given = self.capabilities, given_prompt(prompt)
        if isinstance(given, list) and not can.has_ids:
            raise ConfigError("This server does not return token ids, so the prompt must be a text")
        if request.prompt_logprobs and not can.scores_prompts:
            raise ConfigError(
                "This server returns no log-probabilities of a prompt's tokens, so it cannot score a prompt"
            )
        if request.forced:
            raise ConfigError("This server cannot be made to record given tokens as generated ones")
        return Job(
            new_id() if job_id is None else checked_id(job_id),
            given,
            self.found.dialect.checked(sampling),
            can.limited(request),
            self.vocabulary.beginning() if isinstance(self.vocabulary, SeenVocabulary) else self.vocabulary,
            cancel=self._cancel,
            position=self._waiting.position,
            origin=origin,
        )

    def _start(self, job: Job) -> None:
        """Send a job that has left the queue."""
        started = time.monotonic()
        try:
            self._loop.begin(self._run(job, started))
        except PoolClosed as error:
            job.fail(error)

    async def _run(self, job: Job, started: float) -> None:
        """Run one job to its end, which is also an error of its own. The next one starts when its request is over."""
        try:
            task = asyncio.current_task()
            assert task is not None
            self._running[job] = task
            if job.is_cancelled:  # while it was neither in the queue nor running
                raise CancelledError
            await self._explained(job, started)
        except CancelledError:
            closed = self.ending or PoolClosed("closed while this job was open")
            self._loop.deliver(job.on_cancelled if job.is_cancelled else partial(job.fail, closed))
        except EngineError as error:
            self._loop.deliver(partial(job.fail, error.bare()))
        except Exception as defect:
            self._loop.deliver(partial(job.fail, _defect(defect)))
        finally:
            self._running.pop(job, None)
            self._waiting.ended(job)

    async def _explained(self, job: Job, started: float) -> None:
        """Answer a job; raises the reason of an error of its request. Finding it may be cancelled, or fail, as well."""
        try:
            await self._answer(job, started)
        except EngineError as error:
            raise (await self._reason(job, error)).bare() from None

    async def _reason(self, job: Job, error: EngineError) -> EngineError:
        """Return the error that a job fails with, after an error of its request."""
        return error

    async def _answer(self, job: Job, started: float) -> None:
        ids = await self._prompt_ids(job)
        if isinstance(job.vocabulary, SeenVocabulary) and isinstance(self.vocabulary, SeenVocabulary):
            job.vocabulary.learn_from(self.vocabulary, ids)
        sampling, found, deliver = job.sampling, self.found, partial(self._loop.deliver, _tell, job)
        if sampling.seed is None and self.capabilities.seeds:
            sampling = replace(sampling, seed=random.getrandbits(31))
        queue_s = started - job.submitted
        deliver(partial(job.on_started, ids, num_cached=0, seed=sampling.seed or 0, queue_s=queue_s, load_s=0.0))
        answer = Answer(job, self.vocabulary, started)
        if not job.request.max_tokens and not job.request.prompt_logprobs:
            deliver(answer.end, "length")
            return
        body = found.form.body(found.dialect, found.model, ids or job.prompt, sampling, job.request)
        try:
            await self._stream.read(answer, body, deliver)
        except CancelledError:
            if not job.is_cancelled:
                raise
            deliver(answer.end, "cancelled")
        else:
            deliver(answer.finish)

    async def _prompt_ids(self, job: Job) -> list[int]:
        """Return the token ids of a prompt; none where the server does not return them. Raises PromptTooLong."""
        if not self.capabilities.tokenizes:
            return []
        if isinstance(job.prompt, str):
            ids = await self._text.ids(job.prompt)
        else:
            ids = job.prompt
            await self._text.learn(ids)
        n_ctx = self.capabilities.n_ctx
        if n_ctx and len(ids) > n_ctx:
            raise PromptTooLong.of(f"{len(ids):,}", n_ctx)
        if job.request.generated >= max(len(ids), 1):
            raise ConfigError("the prompt is empty, or all of it counts as generated")
        return ids

    def _cancel(self, job: Job) -> None:
        """Cancel a job. Each job refers to this method, which keeps the engine alive."""
        job.is_cancelled = True
        if self._waiting.remove(job):
            job.on_cancelled()
        elif (running := self._running.pop(job, None)) is not None:
            self._loop.soon(running.cancel)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Send no requests inside the block; those that run go on, as a server cannot be told to wait."""
        self._waiting.hold(1)
        try:
            yield
        finally:
            self._waiting.hold(-1)

    def pause(self) -> None:
        """Start no jobs until resume(); running ones go on, and submit still accepts new ones."""
        self._waiting.pause(is_paused=True)

    def resume(self) -> None:
        """Start the jobs that pause() held back."""
        self._waiting.pause(is_paused=False)

    # calls

    def check_sampling(self, sampling: Sampling) -> None:
        """Raise ConfigError where the server does not take a parameter; grammars are checked by the server itself."""
        self._waiting.check_open()
        self.found.dialect.checked(sampling)

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Return the ids of `text`, as Pool.tokenize does. Raises ConfigError where the server has no tokenizer."""
        self._waiting.check_open()
        if not self.capabilities.tokenizes:
            raise ConfigError("This server has no tokenizer, so a text cannot be tokenised")
        return self._loop.call(self._text.ids(plain_text("text", text, MAX_PROMPT_CHARACTERS), is_special=special))

    def render_chat(
        self, messages: Sequence[dict[str, str]], options: ChatOptions | None = None
    ) -> tuple[str, list[int]]:
        """Render `messages` with the server's chat template; return the text and its ids. options: not supported.

        Raises ConfigError where the server reports no template, or `messages` is no list of messages or empty.
        """
        self._waiting.check_open()
        checked_template(self.chat_template)
        if options is not None and options != ChatOptions():
            raise ConfigError("This server renders a chat with its own settings: leave out tools and variables")
        return self._loop.call(self._text.chat_ids(given_messages(messages)))

    def measure(self, timeout: float | None = None) -> list[dict[str, float]]:
        """Return nothing: the processes of a server are not those of this workbench."""
        del timeout
        return []

    def workers(self) -> list[WorkerInfo]:
        """Return nothing, as `measure`."""
        return []

    # its end

    def close(self, reason: str = "closed while this job was open") -> None:
        """Take no more jobs, and end the open ones with PoolClosed and this reason. Safe to call twice."""
        self.ending = self.ending or PoolClosed(reason)
        for job in self._waiting.close():
            job.fail(PoolClosed(reason))
        self._loop.close(self._link.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _tell(job: Job, callback: Callable[..., object], *args: object) -> None:
    """Call a function with what came for a job, unless it is over; an answer that cannot be read fails it."""
    if job.done():
        return
    try:
        callback(*args)
    except EngineError as error:
        job.fail(error)
    except Exception as defect:
        job.fail(_defect(defect))


def _defect(error: Exception) -> EngineError:
    return EngineError(f"the answer could not be read because of a defect in this program: {error!r}")
