"""Streams of answers: what a server sends for one job is read in the event loop, until nothing of it is missing."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from engine.backends.answer import Answer
from engine.backends.dialects import Form
from engine.backends.link import Link
from engine.backends.sent import Sent
from engine.backends.server_loop import ServerLoop
from engine.backends.server_text import ServerText
from engine.errors import EngineError, ServerFailed

MOST_UNDELIVERED, UNDELIVERED_POLL_S = 256, 0.002
"""Events of one answer that were read and not yet delivered; a slower reader makes the server wait."""

ENDS_WITHIN_S = 1.0
"""From the last token of an answer to its end, which brings the counts and lets its connection serve another job."""

NOTHING_SENT = "the server broke the answer off after 0 tokens, without saying why: try again"


class AnswerStream:
    """Reader of the answers that a server streams, in one form."""

    def __init__(self, link: Link, loop: ServerLoop, text: ServerText, form: Form) -> None:
        self._link, self._loop, self._text, self._form = link, loop, text, form

    async def read(
        self, answer: Answer, body: Mapping[str, Any], deliver: Callable[[Callable[[], object]], object]
    ) -> None:
        """Post a request and deliver its events to an answer, until the server ends it or nothing of it is missing.

        Raises ServerFailed, ConfigError, PromptTooLong and QueueFull for what goes wrong before its last token; after
        that token the answer is whole, and the server has ENDS_WITHIN_S left.
        """
        num_read = num_tokens = 0
        try:
            async with asyncio.timeout(None) as limit, self._link.stream(self._form.path, body) as events:
                async for together in events:
                    at, came = time.monotonic(), list[Sent]()
                    try:
                        for event in together:
                            came.append(sent := await self._text.read(self._form, event, num_tokens))
                            if sent.tokens:
                                num_tokens = max(num_tokens + len(sent.tokens), sent.num_generated or 0)
                    finally:
                        num_read += len(came)
                        deliver(partial(self._take, answer, came, at, limit))
                    if answer.num_taken < num_read - MOST_UNDELIVERED:
                        await _delivered(answer, num_read - MOST_UNDELIVERED)
                    if answer.is_enough or answer.job.done():
                        return
                if not num_read:
                    raise ServerFailed(NOTHING_SENT, status=200)
        except TimeoutError:
            return
        except EngineError:
            await _delivered(answer, num_read)
            if not answer.is_over:
                raise

    def _take(self, answer: Answer, came: Sequence[Sent], at: float, limit: asyncio.Timeout) -> None:
        """Take events that came together; the last token among them begins the time until the end."""
        was_over = answer.is_over
        answer.take(came, at)
        if answer.is_over and not was_over:
            self._loop.soon(partial(_end_soon, limit))


async def _delivered(answer: Answer, num_events: int) -> None:
    """Wait until an answer has taken so many events, or its job is over."""
    while answer.num_taken < num_events and not answer.job.done():
        await asyncio.sleep(UNDELIVERED_POLL_S)


def _end_soon(limit: asyncio.Timeout) -> None:
    """Let a limit end in ENDS_WITHIN_S, unless what it limits is over."""
    with suppress(RuntimeError):
        limit.reschedule(asyncio.get_running_loop().time() + ENDS_WITHIN_S)
