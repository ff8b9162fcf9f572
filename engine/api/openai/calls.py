"""Calls: requests to the endpoints that compute, begun from a body, for a client that waits or in the background."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from engine.api.openai.answers import ChatAnswers, Chunk, CompletionAnswers, Shape, chunks_of
from engine.api.openai.embeddings import Embedded, Embedder, EmbeddingRequest
from engine.api.openai.errors import ApiError, api_error
from engine.api.openai.generation import Choice, Generator, all_of, stop, while_there
from engine.api.openai.requests import ChatRequest, CompletionRequest, Endpoint, decoded, unknown_fields
from engine.api.openai.streaming import EventStream, merged
from engine.api.openai.traffic import Call, Figures, Traffic
from engine.errors import EngineError
from engine.results import Completion
from engine.specs import Origin

NAMED_TRIALS = 64
"""Trials of one call that a header names: clients and proxies refuse headers of 8 KB, some of 4."""
QUICK_STEPS = 32
"""Tokens up to which the event loop itself writes a response: about a millisecond with 20 candidates each."""


class Begun(Protocol):
    """A call that has begun. trials: ids, one for each answer; is_stream: its client asked for a stream.

    num_parts: parts that its chunks belong to, which come in lists of those that came together. Result and chunks raise
    ApiError, the result also for an answer that was stopped.
    """

    @property
    def trials(self) -> tuple[str, ...]: ...
    @property
    def is_stream(self) -> bool: ...
    @property
    def is_started(self) -> bool: ...
    @property
    def is_stopped(self) -> bool: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_parts(self) -> int: ...

    async def result(self) -> bytes: ...

    def chunks(self) -> AsyncIterator[list[Chunk]]: ...

    def stop(self) -> None: ...


class Generated:
    """Answers of the loaded model; `new_shape` makes what writes them down, which a stream uses up."""

    def __init__(
        self,
        asked: CompletionRequest | ChatRequest,
        choices: Sequence[Choice],
        new_shape: Callable[[], Shape],
        num_top: int | None,
    ) -> None:
        self._asked, self._choices, self._new_shape, self._num_top = asked, choices, new_shape, num_top
        self.trials = tuple(choice.trial.id for choice in choices)
        self.is_stream = asked.stream
        self.num_parts = len(choices) + 1

    @property
    def is_started(self) -> bool:
        """True once an answer has left the queue."""
        return any(choice.trial.job.is_started for choice in self._choices)

    @property
    def is_stopped(self) -> bool:
        """True where an answer was stopped before its end; valid once `result` has returned."""
        jobs = [choice.trial.job for choice in self._choices]
        return any(job.exception(0) is None and job.result(0).finish_reason == "cancelled" for job in jobs)

    @property
    def num_tokens(self) -> int:
        """Tokens of prompts and answers that it holds in memory."""
        jobs = [choice.trial.job for choice in self._choices]
        return sum(len(job.prompt_ids or ()) + len(job.steps) for job in jobs)

    async def result(self) -> bytes:
        """Wait for all answers and return the response; the rest is stopped where one fails. Raises ApiError."""
        shape = self._new_shape()
        try:
            completions = await all_of([choice.trial.job for choice in self._choices])
        except EngineError as error:
            raise self._asked.blamed(api_error(error)) from None
        finally:
            self.stop()
        if sum(len(one.steps) + len(one.prompt_steps) for one in completions) <= QUICK_STEPS:
            return self._encoded(shape, completions)
        return await asyncio.to_thread(self._encoded, shape, completions)

    def _encoded(self, shape: Shape, completions: Sequence[Completion]) -> bytes:
        """Return the response; one of many tokens with candidates takes seconds."""
        return msgspec.json.encode(shape.response(self._choices, completions))

    async def chunks(self) -> AsyncIterator[list[Chunk]]:
        """Yield the chunks of all answers from the first on, then the token counts where the request asks for them.

        Raises ApiError for an answer that fails.
        """
        shape, num_top, stops = self._new_shape(), self._num_top, self._asked.stops
        answers = [chunks_of(*one, shape, num_top, stops) for one in enumerate(self._choices)]
        try:
            async for chunks in answers[0] if len(answers) == 1 else merged(answers):
                yield chunks
        except EngineError as error:
            raise self._asked.blamed(api_error(error)) from None
        if self._asked.includes_usage:
            yield [Chunk(len(answers), shape.usage([choice.completion for choice in self._choices]))]

    def stop(self) -> None:
        """Stop its answers at their next decode step."""
        stop([choice.trial for choice in self._choices])


class Vectors:
    """Vectors of texts by the embedding model; they are no trial, and their stream is one chunk."""

    trials: tuple[str, ...] = ()
    is_stream = is_stopped = False
    is_started = True
    num_parts, num_tokens = 1, 0

    def __init__(self, call: Call, embedded: "asyncio.Future[Embedded | None]", is_over: threading.Event) -> None:
        self._call, self._embedded, self._is_over = call, embedded, is_over
        embedded.add_done_callback(_seen)

    async def result(self) -> bytes:
        """Wait for the vectors and return the response. Raises ApiError."""
        try:
            return await self._response()
        except asyncio.CancelledError:
            self.stop()
            raise

    async def _response(self) -> bytes:
        """Wait for the vectors, which are computed even if nobody waits."""
        found = await asyncio.shield(self._embedded)
        if found is None:
            raise ApiError(409, "The request was stopped.", code="stopped")
        if self._call.is_open:
            self._call.end(Figures(num_prompt=found.num_tokens))
        return found.body

    async def chunks(self) -> AsyncIterator[list[Chunk]]:
        """Yield the response; a reader that leaves does not stop it. Raises ApiError."""
        yield [Chunk(0, msgspec.Raw(await self._response()))]

    def stop(self) -> None:
        """Stop after the text that is being embedded."""
        self._is_over.set()


def _seen(embedded: "asyncio.Future[Embedded | None]") -> None:
    """Mark an error as seen: nobody waits for the vectors of a client that has left."""
    if not embedded.cancelled():
        embedded.exception()


class Caller:
    """Starter of calls: a table of endpoints, each of which begins from a body; every call is one of the traffic."""

    def __init__(self, generator: Generator, embedder: Embedder, traffic: Traffic) -> None:
        self._generator, self._embedder, self._traffic = generator, embedder, traffic
        self._endpoints: dict[Endpoint, Callable[[bytes, Origin, Call], Awaitable[Begun]]] = {
            "/v1/completions": self._complete,
            "/v1/chat/completions": self._chat,
            "/v1/embeddings": self._embed,
        }

    @property
    def model_id(self) -> str:
        """Name of the loaded model for clients; empty while there is none."""
        return self._generator.model_id

    async def begin(self, endpoint: Endpoint, body: bytes, client: str, origin: Origin) -> tuple[Begun, Call]:
        """Begin a call. Raises ApiError where it is refused."""
        model = "" if endpoint == "/v1/embeddings" else self._generator.model_id
        call = self._traffic.add(client, endpoint, model, body, is_batch=origin.lane == "batch")
        try:
            return await self._endpoints[endpoint](body, origin, call), call
        except (ApiError, EngineError) as error:
            refused = api_error(error) if isinstance(error, EngineError) else error
            call.fail(refused)
            raise refused from None
        except asyncio.CancelledError:
            call.leave()
            raise
        except Exception as defect:
            call.fail(defect_error(defect))
            raise

    async def _complete(self, body: bytes, origin: Origin, call: Call) -> Begun:
        asked, model = decoded(body, CompletionRequest), call.model
        choices = await self._generator.completions(asked, origin, unknown_fields(body, CompletionRequest))
        call.begin([choice.trial for choice in choices])
        return Generated(asked, choices, lambda: CompletionAnswers(asked, model, choices), asked.logprobs)

    async def _chat(self, body: bytes, origin: Origin, call: Call) -> Begun:
        asked, model = await asyncio.to_thread(decoded(body, ChatRequest).checked), call.model
        choices = await self._generator.chat(asked, origin, unknown_fields(body, ChatRequest))
        call.begin([choice.trial for choice in choices])
        num_top = (asked.top_logprobs or 0) if asked.logprobs else None
        return Generated(asked, choices, lambda: ChatAnswers(asked, model, choices), num_top)

    async def _embed(self, body: bytes, _origin: Origin, call: Call) -> Begun:
        asked, is_over = decoded(body, EmbeddingRequest), threading.Event()
        chosen = await asyncio.to_thread(self._embedder.choose, asked.model)
        call.run(chosen.name)
        return Vectors(call, self._embedder.start(asked, chosen, len(body), is_over.is_set), is_over)


async def respond_to(request: Request, begun: Begun, call: Call) -> Response:
    """Answer a client that waits, with the whole response or a stream. Its leaving stops the call."""
    try:
        if begun.is_stream:
            return await _stream(request, begun)
        headers = trial_headers(begun.trials, request)  # what can be made before the answer is there
        return Response(await while_there(request, begun.result()), headers=headers, media_type="application/json")
    except BaseException as error:
        begun.stop()
        if isinstance(error, ApiError):
            call.fail(error)
        elif isinstance(error, ClientDisconnect | asyncio.CancelledError):
            call.leave()
        elif isinstance(error, Exception):
            call.fail(defect_error(error))
        raise


async def _stream(request: Request, begun: Begun) -> Response:
    """Return a stream of the chunks; an error of the prompt itself is still a response of its own."""
    chunks = begun.chunks()
    first = await while_there(request, anext(chunks))

    async def whole() -> AsyncIterator[list[Chunk]]:
        yield first
        async for more in chunks:
            yield more

    return EventStream(whole(), trial_headers(begun.trials, request), on_end=begun.stop)


def trial_headers(trials: Sequence[str], request: Request) -> dict[str, str]:
    """Return the headers that name trials, at most NAMED_TRIALS of them, and the page of the first.

    Each trial is stored within 0.1 s of its end, not when it is named.
    """
    if not trials:
        return {}
    named = ",".join(trials[:NAMED_TRIALS])
    return {"x-logitbench-trial": named, "link": f'<{trial_url(trials[0], request)}>; rel="describedby"'}


def trial_url(trial: str, request: Request) -> str:
    """Return the address of a trial's page."""
    return f"{request.app.state.pages()}?trial={trial}"


def defect_error(defect: Exception) -> ApiError:
    """Return the error of a call that a defect of this program ended."""
    return ApiError(500, f"A defect in this program: {defect!r}", type="server_error")


def json_response(value: Any, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    """Return a response with JSON as its body."""
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")
