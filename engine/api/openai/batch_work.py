"""Work on one batch: its lines are asked beside each other, and their answers are written in groups."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import BinaryIO

from engine.api.openai.batch_lines import Asked, asked_of
from engine.api.openai.batch_output import Answer, Output, answered, refused
from engine.api.openai.calls import Begun, Caller, defect_error
from engine.api.openai.errors import PASSING, QUEUE_RETRY_S, ApiError
from engine.api.openai.files import stored
from engine.api.openai.requests import Endpoint
from engine.api.openai.traffic import Call
from engine.errors import without_traceback
from engine.ids import new_id
from engine.specs import Origin

MOST_TRIES = 3
"""Times that a line is asked which is stopped, or whose worker process or external engine breaks off, before that is
its answer."""
POLL_S = 0.5
MEASURING = "machine_busy"
"""Code of the obstacle that lets calls end which have begun."""
GROUP_LINES, GROUP_BYTES = 100, 1 << 20
"""Lines that are read at once."""

_log = logging.getLogger(__name__)

Write = Callable[[list[Answer]], Awaitable[None]]
"""Function that writes answers; it waits while the disk is full."""


class BatchWork:
    """Lines of one batch that are not answered yet.

    client: name of its calls in the traffic; obstacle: why no line can be asked now (no model or another one, a
    benchmark), None where one can. waits_for: the last error that lines wait to pass, None once one has its answer.
    """

    def __init__(
        self,
        caller: Caller,
        endpoint: Endpoint,
        client: str,
        origin: Origin,
        *,
        obstacle: Callable[[], ApiError | None],
    ) -> None:
        self._caller, self._endpoint, self._client, self._origin = caller, endpoint, client, origin
        self._obstacle = obstacle
        self.waits_for: ApiError | None = None
        self._written: asyncio.Queue[tuple[Answer, asyncio.Future[None]]] = asyncio.Queue()

    async def run(self, file: BinaryIO, output: Output, width: int, write: Write) -> None:
        """Answer the lines, `width` of them at a time; a line is over when its answer is on the disk."""
        slots = asyncio.Semaphore(width)
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(self._write(write))
            async for asked in _read(asked_of(file, self._endpoint, output.numbers.__contains__)):
                await slots.acquire()
                tasks.create_task(self._answer(asked)).add_done_callback(lambda _: slots.release())
            for _ in range(width):
                await slots.acquire()
            writing.cancel()

    async def _write(self, write: Write) -> None:
        """Write answers as they come: all that came while the last ones were written are the next group."""
        while True:
            group = [await self._written.get()]
            while not self._written.empty():
                group.append(self._written.get_nowait())
            await write([answer for answer, _ in group])
            for _, is_written in group:
                is_written.set_result(None)

    async def _answer(self, asked: Asked) -> None:
        answer = refused(asked, asked.error) if asked.error is not None else await self._asked(asked)
        self.waits_for = None
        is_written = asyncio.get_running_loop().create_future()
        self._written.put_nowait((answer, is_written))
        await is_written

    async def _asked(self, asked: Asked) -> Answer:
        """Return the answer to a line, or its error; what the model, a benchmark or others cause is waited for."""
        num_tries = 0
        while True:
            while self._obstacle() is not None:
                await asyncio.sleep(POLL_S)
            try:
                body, request_id = await self._call(asked.body)
            except ApiError as error:
                if self._obstacle() is not None:
                    continue
                if error.code in PASSING:
                    self.waits_for = without_traceback(error)
                else:
                    num_tries += 1
                if not error.retry_s or num_tries == MOST_TRIES:
                    return refused(asked, error)
                await asyncio.sleep(error.retry_s)
            except Exception as defect:  # of this line: the others go on
                _log.exception("Line %d of %s failed", asked.number, self._client)
                return refused(asked, defect_error(defect))
            else:
                obstacle = self._obstacle()
                if obstacle is None or obstacle.code == MEASURING:  # else another model may have answered
                    return answered(asked, body, request_id)

    async def _call(self, body: bytes) -> tuple[bytes, str]:
        """Make one call; gives its response and an id. Raises ApiError, also where it was stopped before its end."""
        begun, call = await self._caller.begin(self._endpoint, body, self._client, self._origin)
        return await _response(begun, call)


async def _response(begun: Begun, call: Call) -> tuple[bytes, str]:
    try:
        response = await begun.result()
    except ApiError as error:
        call.fail(error)
        raise
    except BaseException:
        begun.stop()
        call.leave()
        raise
    if begun.is_stopped:
        raise ApiError(409, "The request was stopped.", code="stopped", retry_s=QUEUE_RETRY_S)
    return response, begun.trials[0] if begun.trials else new_id()


async def _read(lines: Iterator[Asked]) -> AsyncIterator[Asked]:
    """Yield lines that are read in a thread, group by group. Raises ApiError where that fails."""
    while group := await stored(_group, lines):
        for asked in group:
            yield asked


def _group(lines: Iterator[Asked]) -> list[Asked]:
    group: list[Asked] = []
    size = 0
    for asked in lines:
        group.append(asked)
        size += len(asked.body)
        if len(group) == GROUP_LINES or size > GROUP_BYTES:
            break
    return group
