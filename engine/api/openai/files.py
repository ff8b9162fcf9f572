"""/v1/files: uploads of batches' input, lists, contents and deletions."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

import msgspec
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from engine.api.openai.calls import json_response
from engine.api.openai.errors import QUEUE_RETRY_S, ApiError, refusal
from engine.api.openai.file_store import FILE_ID, STORAGE_FULL, FileStore, Stored
from engine.api.openai.paging import Page, listed
from engine.api.openai.responses import Deleted, File
from engine.api.openai.traffic import printable
from engine.errors import quoted

MOST_UPLOADS = 4
"""Uploads at the same time: each is held on the disk twice until it is stored."""
MOST_LISTED = 10_000
MOST_FIELDS, MOST_FIELD_BYTES = 16, 4_096
LONGEST_NAME = 200
LINES = "application/jsonl"
FORM = "multipart/form-data"
PURPOSES = ("batch", "batch_output")
_BLOCK = 1 << 18

P = ParamSpec("P")
T = TypeVar("T")


class FileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Form of POST /v1/files. file: requests as JSON lines, each as BatchLine says."""

    purpose: Literal["batch"]
    file: Annotated[str, msgspec.Meta(extra_json_schema={"format": "binary"})]


class Files:
    """Routes of the files. user_of: the id of the batch that still reads a file, None where none does."""

    def __init__(self, store: FileStore, user_of: Callable[[str], Awaitable[str | None]]) -> None:
        self._store, self._user_of = store, user_of
        self._num_uploads = 0

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/v1/files", self.list),
            Route("/v1/files", self.create, methods=["POST"]),
            Route("/v1/files/{id}", self.read),
            Route("/v1/files/{id}", self.delete, methods=["DELETE"]),
            Route("/v1/files/{id}/content", self.content),
        ]

    async def create(self, request: Request) -> Response:
        """POST /v1/files: a form with the fields purpose and file."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
            raise ApiError(400, f"The body must be a form ({FORM}) with the fields purpose and file.")
        async with self._uploading():
            try:
                async with request.form(max_files=1, max_fields=MOST_FIELDS, max_part_size=MOST_FIELD_BYTES) as form:
                    return json_response(await self._add(form.get("purpose"), form.get("file")))
            except HTTPException as error:
                raise ApiError(400, f"The form cannot be read: {error.detail}") from None
            except OSError as error:
                raise storage_error(error) from None

    @asynccontextmanager
    async def _uploading(self) -> AsyncIterator[None]:
        """Count an upload while it lasts. Raises ApiError for one too many."""
        if self._num_uploads >= MOST_UPLOADS:
            text = f"{MOST_UPLOADS} files are being uploaded, as many as may be at once: wait, then try again."
            raise ApiError(429, text, type="rate_limit_error", code="rate_limit_exceeded", retry_s=QUEUE_RETRY_S)
        self._num_uploads += 1
        try:
            yield
        finally:
            self._num_uploads -= 1

    async def _add(self, purpose: Any, given: Any) -> File:
        if purpose != "batch":
            raise refusal(f"purpose = {quoted(purpose)}: must be 'batch'; files serve nothing else here", "purpose")
        if not isinstance(given, UploadFile):
            raise refusal("file is missing: send it as a part of the form that has a file name", "file")
        if not given.size:
            raise refusal("file is empty: send a request a line, as JSON", "file")
        name = printable(given.filename or "")[:LONGEST_NAME] or "unnamed"
        return await asyncio.to_thread(self._store.add, given.file, name)

    async def list(self, request: Request) -> Response:
        """GET /v1/files."""
        page, purpose = Page.of(request, FILE_ID, MOST_LISTED, MOST_LISTED), request.query_params.get("purpose")
        if purpose is not None and purpose not in PURPOSES:
            raise refusal(f"purpose = {quoted(purpose)}: must be batch or batch_output", "purpose")
        return json_response(listed(*await stored(self._store.page, page, purpose or "")))

    async def read(self, request: Request) -> Response:
        """GET /v1/files/{id}."""
        return json_response(await stored(self._store.read, request.path_params["id"]))

    async def content(self, request: Request) -> Response:
        """GET /v1/files/{id}/content."""
        found = await stored(self._store.open, request.path_params["id"])
        size = os.fstat(found.content.fileno()).st_size
        headers = {"content-length": str(size), "x-content-type-options": "nosniff"}
        return StreamingResponse(_blocks(found), headers=headers, media_type=LINES)

    async def delete(self, request: Request) -> Response:
        """DELETE /v1/files/{id}: refused while a batch reads it."""
        id = request.path_params["id"]
        if batch := await self._user_of(id):
            text = f"The file is the input of {batch}, which is not over: wait for it, or cancel it."
            raise ApiError(409, text, param="id", code="file_in_use")
        await stored(self._store.delete, id)
        return json_response(Deleted(id=id))


async def stored(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Call what reads or writes the disk in a thread. Raises ApiError where the disk fails."""
    try:
        return await asyncio.to_thread(work, *args, **named)
    except OSError as error:
        raise storage_error(error) from None


def storage_error(error: OSError) -> ApiError:
    """Return the response for a disk that cannot be read or written."""
    text = f"The folder of the files cannot be read or written: {error.strerror or error}."
    return ApiError(507, text, type="server_error", code=STORAGE_FULL)


async def _blocks(found: Stored) -> AsyncIterator[bytes]:
    with found.content as content:
        while block := await asyncio.to_thread(content.read, _BLOCK):
            yield block
