"""Server-sent events: chunks of several answers in the order in which they come."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from engine.api.openai.answers import Chunk
from engine.api.openai.errors import ApiError

DONE = b"data: [DONE]\n\n"
T = TypeVar("T")


def event(value: Any) -> bytes:
    """Return one event with JSON as its data."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


async def merged(streams: Sequence[AsyncIterator[T]]) -> AsyncIterator[T]:
    """Yield the chunks of several streams as they come. The first error of one is raised, whatever its kind."""
    queue: asyncio.Queue[T | Exception | None] = asyncio.Queue(64)

    async def read(stream: AsyncIterator[T]) -> None:
        try:
            async for chunk in stream:
                await queue.put(chunk)
        except Exception as error:  # one that is not put there would leave its reader waiting for ever
            await queue.put(error)
        else:
            await queue.put(None)

    tasks = [asyncio.ensure_future(read(stream)) for stream in streams]
    try:
        num_open = len(tasks)
        while num_open:
            came = await queue.get()
            if isinstance(came, Exception):
                raise came
            if came is None:
                num_open -= 1
            else:
                yield came
    finally:
        for task in tasks:
            task.cancel()


class EventStream(StreamingResponse):
    """Response that sends chunks as events, each list of them at once.

    on_end: called when all is sent, or the client has left.
    """

    media_type = "text/event-stream"

    def __init__(
        self, chunks: AsyncIterator[list[Chunk]], headers: dict[str, str], *, on_end: Callable[[], object]
    ) -> None:
        super().__init__(events(chunks), headers={**headers, "cache-control": "no-store"})
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


async def events(chunks: AsyncIterator[list[Chunk]]) -> AsyncIterator[bytes]:
    """Yield lists of chunks as events, those of each together: what is written costs by its number of pieces.

    The event loop runs after each list, so that nothing is written any more soon after a client has left, however many
    chunks are ready. An error that comes after the first of them is an event too.
    """
    try:
        async for together in chunks:
            if together:
                yield b"".join([event(chunk.content) for chunk in together])
                await asyncio.sleep(0)
    except ApiError as error:
        yield event(error.body())
    yield DONE
