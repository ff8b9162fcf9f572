"""ASGI application of the OpenAI-compatible API: its routes, each of which reads a request and answers it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route

from engine.api.openai.batch_runner import BatchRunner
from engine.api.openai.batch_store import BatchStore
from engine.api.openai.batches import Batches
from engine.api.openai.calls import Caller, json_response, respond_to
from engine.api.openai.clients import ClientLimit, origin_of
from engine.api.openai.docs import docs_page, openapi_json
from engine.api.openai.embeddings import Embedder
from engine.api.openai.errors import ApiError, api_error
from engine.api.openai.file_store import FileStore
from engine.api.openai.files import Files
from engine.api.openai.generation import Generator
from engine.api.openai.guard import Guard
from engine.api.openai.jobs import Jobs, prefers_job
from engine.api.openai.metrics import CLIENT_LEFT, CONTENT_TYPE, Measured, Metrics
from engine.api.openai.requests import (
    DetokenizeRequest,
    TokenizeRequest,
    decoded,
)
from engine.api.openai.responses import Model
from engine.api.openai.tokenizer import (
    detokenized,
    has_whole_vocabulary,
    tokenized,
    tokenizer_info,
    whole_vocabulary,
)
from engine.api.openai.traffic import Traffic
from engine.errors import EngineError
from engine.workbench.workbench import Workbench


class Routes:
    """Handlers of the endpoints, for the model that a workbench has loaded."""

    def __init__(self, bench: Workbench, traffic: Traffic, metrics: Metrics, *, has_key: bool) -> None:
        self._bench, self._generator, self._embedder = bench, Generator(bench), Embedder(bench)
        self._caller = Caller(self._generator, self._embedder, traffic)
        self._metrics, self._has_key = metrics, has_key
        self._jobs = Jobs(self._caller, bench.trials)
        files = FileStore(bench.settings.home / "batches")
        store = BatchStore(files)
        runner = BatchRunner(bench, self._caller, store, files)
        self._files, self._batches = Files(files, runner.user_of), Batches(store, files, runner)

    def all(self) -> list[Route]:
        """Return the routes, those of calls first, as they are tried in this order."""
        return [
            Route("/v1/completions", self.call, methods=["POST"]),
            Route("/v1/chat/completions", self.call, methods=["POST"]),
            Route("/v1/embeddings", self.call, methods=["POST"]),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/openapi.json", openapi_json),
            Route("/docs", docs_page),
            Route("/v1/models", self.models),
            Route("/v1/models/{id:path}", self.model),
            Route("/tokenizer_info", self.tokenizer_info),
            Route("/vocabulary", self.vocabulary),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            *self._jobs.routes(),
            *self._files.routes(),
            *self._batches.routes(),
        ]

    @asynccontextmanager
    async def running(self, _app: Starlette) -> AsyncIterator[None]:
        """Run batches while the server runs; without a key nobody could ask for them."""
        async with self._batches.running() if self._has_key else nullcontext():
            yield

    async def health(self, _request: Request) -> Response:
        """Answer whether a model is loaded: 200, else 503."""
        self._generator.engine()
        return json_response({"status": "ok"})

    async def metrics(self, _request: Request) -> Response:
        """Return the figures of this server in Prometheus' text form."""
        return Response(await asyncio.to_thread(self._metrics.text), headers={"content-type": CONTENT_TYPE})

    async def models(self, _request: Request) -> Response:
        """List the loaded model and the one that embeds."""
        return json_response({"object": "list", "data": await self._models()})

    async def model(self, request: Request) -> Response:
        """Describe one model, whose name may have slashes."""
        name = request.path_params["id"]
        found = next((model for model in await self._models() if model.id == name), None)
        if found is None:
            raise self._generator.unknown_model(name)
        return json_response(found)

    async def _models(self) -> list[Model]:
        engine = self._generator.engine()
        own = Model(
            id=self._generator.model_id,
            owned_by="logitbench" if has_whole_vocabulary(engine) else "upstream",
            max_model_len=engine.capabilities.n_ctx or None,
        )
        embeds = await asyncio.to_thread(self._embedder.model)
        return [own] if embeds is None else [own, embeds]

    async def call(self, request: Request) -> Response:
        """POST to an endpoint that computes; the answer is a job where the client prefers not to wait."""
        endpoint, body, origin = request.scope["route"].path, await request.body(), origin_of(request.scope)
        client = request.headers.get("user-agent", "")
        if self._has_key and prefers_job(request):
            return await self._jobs.start(request, endpoint, body)
        begun, call = await self._caller.begin(endpoint, body, client, origin)
        return await respond_to(request, begun, call)

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        asked = decoded(await request.body(), TokenizeRequest)
        return json_response(await asyncio.to_thread(tokenized, self._generator, asked))

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize."""
        asked = decoded(await request.body(), DetokenizeRequest)
        return json_response(await asyncio.to_thread(detokenized, self._generator, asked))

    async def tokenizer_info(self, _request: Request) -> Response:
        """GET /tokenizer_info."""
        return json_response(tokenizer_info(self._generator.engine(), self._bench.model))

    async def vocabulary(self, _request: Request) -> Response:
        """GET /vocabulary."""
        return json_response(await asyncio.to_thread(whole_vocabulary, self._generator.engine()))


def make_app(bench: Workbench, traffic: Traffic, *, key: str, pages: Callable[[], str]) -> Starlette:
    """Return the application, whose calls `traffic` records; `key` as for Guard, pages: the address of the pages."""
    metrics = Metrics(bench, traffic)
    traffic.on_end = metrics.add
    handlers = Routes(bench, traffic, metrics, has_key=bool(key))
    routes = handlers.all()
    origins = bench.settings.api_origins
    app = Starlette(
        routes=routes,
        lifespan=handlers.running,
        middleware=[
            Middleware(Measured, metrics=metrics, routes=routes),
            *cross_origin(origins),
            Middleware(Guard, key=key, origins=origins),
            Middleware(ClientLimit, most=bench.settings.api_requests, traffic=traffic),
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
    app.state.pages = pages
    return app


def cross_origin(origins: Sequence[str]) -> list[Middleware]:
    """Return what answers the preflight requests of web pages; refusals can be read by those pages too."""
    if not origins:
        return []
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        allow_private_network=True,
        expose_headers=["x-logitbench-trial", "link", "location", "preference-applied", "retry-after"],
    )
    return [cors]


async def _refuse(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return json_response(error.body(), error.headers(), error.status)


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
    headers = {"allow": _allowed(request)} if status == 405 else None
    return json_response(ApiError(status, message, code="unknown_url").body(), headers, status)


def _allowed(request: Request) -> str:
    """Return the methods of a path, of which several routes may have some each."""
    routes: list[Route] = request.app.routes
    found = [route for route in routes if route.matches(request.scope)[0] != Match.NONE]
    return ", ".join(sorted({method for route in found for method in route.methods or ()}))
