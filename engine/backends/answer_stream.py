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

    async def read(self, answer: Answer, body: Mapping[str, Any], deliver: Callable[..., object]) -> None:
        """Post a request and deliver its events to an answer, until the server ends it or nothing of it is missing.

        deliver: is given a function and its arguments, as ServerLoop.deliver.
        Raises ServerFailed, ConfigError, PromptTooLong and QueueFull for what goes wrong before its last token; after
        that token the answer is whole, and the server has ENDS_WITHIN_S left.
        """
        reader = _Reader(answer, self._form, self._text, self._loop, deliver)
        stream = self._link.stream(self._form.path, body, takes=reader.takes)
        try:
            async with asyncio.timeout(None) as reader.limit, stream as events:
                async for together in events:
                    await reader.read(together)
                    if reader.is_done:
                        return
                if not reader.num_read:
                    raise ServerFailed(NOTHING_SENT, status=200)
        except TimeoutError:
            return
        except EngineError:
            await reader.delivered(reader.num_read)
            if not answer.is_over:
                raise


class _Reader:
    """Reader of one answer: decodes events and delivers them. limit: the timeout that the last token starts."""

    limit: asyncio.Timeout

    def __init__(
        self,
        answer: Answer,
        form: Form,
        text: ServerText,
        loop: ServerLoop,
        deliver: Callable[..., object],
    ) -> None:
        self._answer, self._form, self._text, self._loop, self._deliver = answer, form, text, loop, deliver
        self.num_read = self._num_tokens = 0
        self._is_ending = False

    @property
    def is_done(self) -> bool:
        """Whether nothing more is read."""
        return self._answer.is_enough or self._answer.job.done()

    def takes(self, together: Sequence[bytes]) -> bool:
        """Deliver events that came together, without a wait, and return True. Return False, and do nothing, where it
        would have to wait or an event cannot be read: `read` then handles them."""
        at, came, num_tokens = time.monotonic(), list[Sent](), self._num_tokens
        if self.is_done or self._answer.num_taken < self.num_read - MOST_UNDELIVERED:
            return False
        for event in together:
            sent, num_unsent = self._text.read(self._form, event, num_tokens)
            if num_unsent:
                return False
            came.append(sent)
            num_tokens = _num_after(sent, num_tokens)
        self._num_tokens = num_tokens
        self._note(came, at)
        return True

    async def read(self, together: Sequence[bytes]) -> None:
        """Deliver events that came together, and wait where too many are not delivered. Raises ServerFailed."""
        at, came = time.monotonic(), list[Sent]()
        try:
            for event in together:
                sent, num_unsent = self._text.read(self._form, event, self._num_tokens)
                came.append(await self._text.with_unsent(sent, num_unsent) if num_unsent else sent)
                self._num_tokens = _num_after(came[-1], self._num_tokens)
        finally:
            self._note(came, at)
        await self.delivered(self.num_read - MOST_UNDELIVERED)

    async def delivered(self, num_events: int) -> None:
        """Wait until the answer has taken so many events, or its job is over."""
        while self._answer.num_taken < num_events and not self._answer.job.done():
            await asyncio.sleep(UNDELIVERED_POLL_S)

    def _note(self, came: Sequence[Sent], at: float) -> None:
        self.num_read += len(came)
        self._deliver(self._take, came, at)

    def _take(self, came: Sequence[Sent], at: float) -> None:
        """Take events that came together; the last token among them begins the time until the end."""
        self._answer.take(came, at)
        if self._answer.is_over and not self._is_ending:
            self._is_ending = True
            self._loop.soon(partial(_end_soon, self.limit))


def _num_after(sent: Sent, num_before: int) -> int:
    """Return the number of tokens after an event, those that are not sent among them."""
    return max(num_before + len(sent.tokens), sent.num_generated or 0) if sent.tokens else num_before


def _end_soon(limit: asyncio.Timeout) -> None:
    """Let a limit end in ENDS_WITHIN_S, unless what it limits is over."""
    with suppress(RuntimeError):
        limit.reschedule(asyncio.get_running_loop().time() + ENDS_WITHIN_S)
