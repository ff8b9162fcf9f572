"""/v1/batches: requests in a file, answered in the background."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.api.openai.batch_runner import BatchRunner
from engine.api.openai.batch_store import BATCH_ID, BatchStore, Record
from engine.api.openai.calls import json_response
from engine.api.openai.clients import client_of
from engine.api.openai.errors import ApiError, refusal
from engine.api.openai.file_store import FileStore, new_file_id
from engine.api.openai.files import stored
from engine.api.openai.paging import Page, listed
from engine.api.openai.requests import Endpoint, decoded
from engine.api.openai.responses import Batch
from engine.ids import new_id

MOST_LISTED, LISTED = 100, 20
MetadataName = Annotated[str, msgspec.Meta(max_length=64)]
MetadataText = Annotated[str, msgspec.Meta(max_length=512)]


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of POST /v1/batches. endpoint: of all lines of the file; completion_window: a batch never expires here."""

    input_file_id: str
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Annotated[dict[MetadataName, MetadataText], msgspec.Meta(max_length=16)] | None = None


class Batches:
    """Routes of the batches."""

    def __init__(self, store: BatchStore, files: FileStore, runner: BatchRunner) -> None:
        self._store, self._files, self._runner = store, files, runner

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/v1/batches", self.list),
            Route("/v1/batches", self.create, methods=["POST"]),
            Route("/v1/batches/{id}", self.read),
            Route("/v1/batches/{id}/cancel", self.cancel, methods=["POST"]),
        ]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run batches within the block; those that are not over go on when a process runs them again."""
        task = asyncio.create_task(self._runner.run(), name="batches")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def create(self, request: Request) -> Response:
        """POST /v1/batches."""
        asked = decoded(await request.body(), BatchRequest)
        try:
            file = await stored(self._files.read, asked.input_file_id)
        except ApiError as error:
            raise ApiError(error.status, str(error), param="input_file_id", code=error.code) from None
        if file.purpose != "batch":
            raise refusal("input_file_id: is the output of a batch; upload a file of requests", "input_file_id")
        batch = Batch(
            id=f"batch_{new_id()}",
            endpoint=asked.endpoint,
            input_file_id=file.id,
            completion_window=asked.completion_window,
            created_at=int(time.time()),
            metadata=asked.metadata,
        )
        record = Record(batch=batch, client=client_of(request.scope), output_id=new_file_id(), error_id=new_file_id())
        return json_response(await self._runner.add(record))

    async def list(self, request: Request) -> Response:
        """GET /v1/batches."""
        found, has_more = await stored(self._store.page, Page.of(request, BATCH_ID, LISTED, MOST_LISTED))
        return json_response(listed([self._runner.shown(record) for record in found], has_more))

    async def read(self, request: Request) -> Response:
        """GET /v1/batches/{id}."""
        return json_response(await self._runner.read(request.path_params["id"]))

    async def cancel(self, request: Request) -> Response:
        """POST /v1/batches/{id}/cancel."""
        return json_response(await self._runner.cancel(request.path_params["id"]))
