"""Groups of events: all of them in order, together where they are ready together, nothing after a client has left."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.openai.streaming import LARGEST_GROUP, grouped

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run in a thread: that of the tests may have an event loop, of a browser."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result(60)


async def events(waits: list[bool]) -> AsyncIterator[bytes]:
    """Numbered events, with a wait for the event loop before some of them."""
    for number, waits_before in enumerate(waits):
        if waits_before:
            await asyncio.sleep(0)
        yield b"%d;" % number


@given(st.lists(st.booleans(), max_size=3 * LARGEST_GROUP))
def test_all_events_come_in_order_and_groups_are_bounded(waits: list[bool]) -> None:
    async def groups() -> list[bytes]:
        return [group async for group in grouped(events(waits))]

    found = run(groups())
    assert b"".join(found) == b"".join(b"%d;" % number for number in range(len(waits)))
    assert all(0 < group.count(b";") <= LARGEST_GROUP for group in found)


def test_what_is_ready_together_is_written_together() -> None:
    async def groups() -> list[bytes]:
        return [group async for group in grouped(events([False] * LARGEST_GROUP))]

    assert len(run(groups())) == 1


def test_an_error_comes_behind_the_events_before_it() -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"first"
        raise KeyError("a defect")

    async def groups(found: list[bytes]) -> None:
        async for group in grouped(failing()):
            found.append(group)

    found: list[bytes] = []
    with pytest.raises(KeyError):
        run(groups(found))
    assert found == [b"first"]


def test_a_stream_that_is_left_ends_its_events() -> None:
    has_ended = False

    async def endless() -> AsyncIterator[bytes]:
        nonlocal has_ended
        try:
            while True:
                yield b"one"
        finally:
            has_ended = True

    async def read(found: list[bytes]) -> None:
        async for group in grouped(endless()):
            found.append(group)

    async def leave() -> int:
        found: list[bytes] = []
        reading = asyncio.create_task(read(found))
        while not found:
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        return len(found)

    assert run(leave()) < 10
    assert has_ended
