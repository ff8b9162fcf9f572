"""Server-sent events: chunks of several answers in the order in which they come."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from engine.api.openai.errors import ApiError, api_error
from engine.errors import EngineError

DONE = b"data: [DONE]\n\n"
LARGEST_GROUP = 32
"""Events that are written at once."""

T = TypeVar("T")


def event(value: Any) -> bytes:
    """Return one event with JSON as its data."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


async def merged(streams: Sequence[AsyncIterator[T]]) -> AsyncIterator[T]:
    """Yield the chunks of several streams as they come. The first error of one is raised."""
    if len(streams) == 1:
        async for chunk in streams[0]:
            yield chunk
        return
    queue: asyncio.Queue[T | BaseException | None] = asyncio.Queue(64)

    async def read(stream: AsyncIterator[T]) -> None:
        try:
            async for chunk in stream:
                await queue.put(chunk)
        except EngineError as error:
            await queue.put(error)
        await queue.put(None)

    tasks = [asyncio.ensure_future(read(stream)) for stream in streams]
    try:
        num_open = len(tasks)
        while num_open:
            came = await queue.get()
            if isinstance(came, BaseException):
                raise came
            if came is None:
                num_open -= 1
            else:
                yield came
    finally:
        for task in tasks:
            task.cancel()


async def grouped(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the events of a stream, those together that are ready at the same time: what is written costs by its number
    of pieces. The event loop runs after each group, so that nothing is written any more soon after a client has left,
    however many events are ready."""
    ready: list[bytes] = []
    came, taken = asyncio.Event(), asyncio.Event()

    async def read() -> None:
        try:
            async for one in events:
                ready.append(one)
                came.set()
                if len(ready) >= LARGEST_GROUP:
                    taken.clear()
                    await taken.wait()
        finally:
            came.set()

    reading = asyncio.create_task(read())
    try:
        while not reading.done() or ready:
            await came.wait()
            came.clear()
            group = b"".join(ready)
            ready.clear()
            taken.set()
            if group:
                yield group
            await asyncio.sleep(0)
        await reading  # raises what ended it
    finally:
        reading.cancel()
        await asyncio.wait([reading])


class EventStream(StreamingResponse):
    """Response that sends chunks as events. on_end: called when all is sent, or the client has left."""

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncIterator[Any], headers: dict[str, str], *, on_end: Callable[[], object]) -> None:
        super().__init__(grouped(events(chunks)), headers={**headers, "cache-control": "no-store"})
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


async def events(chunks: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    """Yield chunks as events. An error that comes after the first of them is an event too."""
    try:
        async for chunk in chunks:
            yield event(chunk)
    except ApiError as error:
        yield event(error.body())
    except EngineError as error:
        yield event(api_error(error).body())
    yield DONE
