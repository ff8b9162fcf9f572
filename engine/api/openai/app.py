"""ASGI application of the OpenAI-compatible API: its routes, each of which reads a request and answers it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from engine.api.openai.answers import ChatAnswers, CompletionAnswers, Shape, chunks_of
from engine.api.openai.clients import ClientLimit, origin_of
from engine.api.openai.docs import docs_page, openapi_json
from engine.api.openai.embeddings import Embedder, EmbeddingRequest
from engine.api.openai.errors import ApiError, api_error
from engine.api.openai.generation import Choice, Generator, finished, stop, while_there
from engine.api.openai.guard import Guard
from engine.api.openai.metrics import CLIENT_LEFT, CONTENT_TYPE, Measured, Metrics
from engine.api.openai.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    decoded,
)
from engine.api.openai.responses import Model
from engine.api.openai.streaming import EventStream, merged
from engine.api.openai.tokenizer import detokenized, tokenized, tokenizer_info
from engine.api.openai.traffic import Call, Figures, Traffic
from engine.errors import EngineError
from engine.workbench.workbench import Workbench


class Routes:
    """Handlers of the endpoints, for the model that a workbench has loaded."""

    def __init__(self, bench: Workbench, traffic: Traffic, metrics: Metrics) -> None:
        self._bench, self._generator, self._embedder = bench, Generator(bench), Embedder(bench)
        self._traffic, self._metrics = traffic, metrics

    def all(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/openapi.json", openapi_json),
            Route("/docs", docs_page),
            Route("/v1/models", self.models),
            Route("/v1/models/{id}", self.model),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            Route("/tokenizer_info", self.tokenizer_info),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
        ]

    async def health(self, _request: Request) -> Response:
        """Answer whether a model is loaded: 200, else 503."""
        self._generator.engine()
        return _json({"status": "ok"})

    async def metrics(self, _request: Request) -> Response:
        """Return the figures of this server in Prometheus' text form."""
        return Response(await asyncio.to_thread(self._metrics.text), headers={"content-type": CONTENT_TYPE})

    async def models(self, _request: Request) -> Response:
        """List the loaded model and the one that embeds."""
        return _json({"object": "list", "data": await self._models()})

    async def model(self, request: Request) -> Response:
        """Describe one model."""
        name = request.path_params["id"]
        found = next((model for model in await self._models() if model.id == name), None)
        if found is None:
            self._generator.check_model(name)
        return _json(found)

    async def _models(self) -> list[Model]:
        engine = self._generator.engine()
        own = Model(id=self._generator.model_id, max_model_len=engine.capabilities.n_ctx)
        embeds = await asyncio.to_thread(self._embedder.model)
        return [own] if embeds is None else [own, embeds]

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        return await self._recorded(request, self._complete)

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self._recorded(request, self._chat)

    async def _recorded(self, request: Request, answer: Callable[[Request, Call], Awaitable[Response]]) -> Response:
        """Answer a request that generates, as a call of the traffic."""
        client = request.headers.get("user-agent", "")
        call = self._traffic.add(client, request.url.path, self._generator.model_id, await request.body())
        try:
            return await answer(request, call)
        except ApiError as error:
            call.fail(error)
            raise
        except (ClientDisconnect, asyncio.CancelledError):
            call.leave()
            raise
        except Exception as defect:
            call.fail(ApiError(500, f"A defect in this program: {defect!r}"))
            raise

    async def _complete(self, request: Request, call: Call) -> Response:
        asked = decoded(await request.body(), CompletionRequest)
        choices = await self._generator.completions(asked, origin_of(request.scope))
        call.begin([choice.trial for choice in choices])
        shape = CompletionAnswers(asked, self._generator.model_id, choices)
        return await _answer(request, asked, choices, shape, asked.logprobs)

    async def _chat(self, request: Request, call: Call) -> Response:
        asked = decoded(await request.body(), ChatRequest).checked()
        choices = await self._generator.chat(asked, origin_of(request.scope))
        call.begin([choice.trial for choice in choices])
        shape = ChatAnswers(asked, self._generator.model_id, choices)
        return await _answer(request, asked, choices, shape, (asked.top_logprobs or 0) if asked.logprobs else None)

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings."""
        return await self._recorded(request, self._embed)

    async def _embed(self, request: Request, call: Call) -> Response:
        asked = decoded(await request.body(), EmbeddingRequest)
        call.run()
        is_over = threading.Event()
        try:
            found = await while_there(request, self._embedder.start(asked, is_over.is_set))
        finally:
            is_over.set()
        if found is None:
            raise ClientDisconnect
        call.end(Figures(num_prompt=found.num_tokens))
        return Response(found.body, media_type="application/json")

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        asked = decoded(await request.body(), TokenizeRequest)
        return _json(await asyncio.to_thread(tokenized, self._generator, asked))

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize."""
        asked = decoded(await request.body(), DetokenizeRequest)
        return _json(await asyncio.to_thread(detokenized, self._generator, asked))

    async def tokenizer_info(self, _request: Request) -> Response:
        """GET /tokenizer_info."""
        return _json(tokenizer_info(self._generator.engine(), self._bench.model))


def make_app(bench: Workbench, traffic: Traffic, *, key: str) -> Starlette:
    """Return the application, whose calls `traffic` records; `key` as for Guard."""
    metrics = Metrics(bench, traffic)
    traffic.on_end = metrics.add
    routes = Routes(bench, traffic, metrics).all()
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(Measured, metrics=metrics, routes=routes),
            Middleware(Guard, key=key),
            Middleware(ClientLimit, most=bench.settings.api_requests),
        ],
        exception_handlers={
            ApiError: _refuse,
            EngineError: _fail,
            ClientDisconnect: _gone,
            Exception: _broken,
            404: _unknown,
            405: _unknown,
        },
    )


async def _answer(
    request: Request,
    asked: CompletionRequest | ChatRequest,
    choices: Sequence[Choice],
    shape: Shape,
    num_top: int | None,
) -> Response:
    """Answer with the whole response, or with a stream of its chunks."""
    headers = _about(choices)
    if not asked.stream:
        completions = await finished(request, choices)
        return _json(shape.response(choices, completions), headers)
    stopped = partial(stop, [choice.trial for choice in choices])
    chunks = merged([chunks_of(index, choice, shape, num_top, asked.stops) for index, choice in enumerate(choices)])
    try:  # an error of the prompt itself is still a response of its own
        first = await while_there(request, anext(chunks))
    except BaseException as error:
        stopped()
        if isinstance(error, EngineError):
            raise api_error(error) from None
        raise
    whole = _whole_stream(first, chunks, choices, shape, has_usage=asked.includes_usage)
    return EventStream(whole, headers, on_end=stopped)


async def _whole_stream(
    first: dict[str, Any],
    chunks: AsyncIterator[dict[str, Any]],
    choices: Sequence[Choice],
    shape: Shape,
    *,
    has_usage: bool,
) -> AsyncIterator[dict[str, Any]]:
    """Yield all chunks, then the usage."""
    yield first
    async for chunk in chunks:
        yield chunk
    if has_usage:
        yield shape.usage([choice.completion for choice in choices])


def _about(choices: Sequence[Choice]) -> dict[str, str]:
    """Return headers that name the trials of an answer; each is stored within 0.1 s of its end, not when named."""
    ids = [choice.trial.id for choice in choices]
    return {"x-logitbench-trial": ",".join(ids), "link": f'</?trial={ids[0]}>; rel="describedby"'}


def _json(value: Any, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


async def _refuse(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _json(error.body(), error.headers(), error.status)


async def _fail(request: Request, error: Exception) -> Response:
    assert isinstance(error, EngineError)
    return await _refuse(request, api_error(error))


async def _broken(request: Request, _defect: Exception) -> Response:
    text = "A defect in this program; its log has the details."
    return await _refuse(request, ApiError(500, text, type="server_error"))


async def _gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_LEFT)


async def _unknown(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    message = f"There is no {request.method} {request.url.path[:100]} in this API."
    body = ApiError(status, message, code="unknown_url").body()
    return _json(body, getattr(error, "headers", None), status)
