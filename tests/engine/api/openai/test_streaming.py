"""Streams of events: all chunks in order, those that came together written together, errors behind what came before."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.openai.answers import Chunk
from engine.api.openai.errors import ApiError
from engine.api.openai.streaming import DONE, events, merged
from engine.errors import EngineError

T = TypeVar("T")
LISTS = st.lists(st.integers(0, 5), max_size=8)
"""How many chunks come together, again and again."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run in a thread: that of the tests may have an event loop, of a browser."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result(60)


async def lists(part: int, sizes: list[int], error: Exception | None = None) -> AsyncIterator[list[Chunk]]:
    """Numbered chunks of one answer, and an error behind them."""
    num = 0
    for size in sizes:
        await asyncio.sleep(0)
        yield [Chunk(part, num + number) for number in range(size)]
        num += size
    if error is not None:
        raise error


def written(chunks: AsyncIterator[list[Chunk]]) -> list[bytes]:
    """What is written for lists of chunks, piece by piece."""

    async def all_of() -> list[bytes]:
        return [piece async for piece in events(chunks)]

    return run(all_of())


@given(LISTS)
def test_all_chunks_come_in_order_and_those_of_a_list_are_written_at_once(sizes: list[int]) -> None:
    *pieces, last = written(lists(0, sizes))
    assert last == DONE
    assert [piece.count(b"data: ") for piece in pieces] == [size for size in sizes if size]
    assert b"".join(pieces) == b"".join(b"data: %d\n\n" % number for number in range(sum(sizes)))


@given(LISTS)
def test_an_error_is_an_event_behind_those_before_it(sizes: list[int]) -> None:
    *pieces, error, last = written(lists(0, sizes, ApiError(400, "it failed")))
    assert len(pieces) == sum(map(bool, sizes)) and last == DONE
    answer = msgspec.json.decode(error.removeprefix(b"data: "))
    assert "it failed" in answer["error"]["message"]


@given(st.lists(LISTS, min_size=1, max_size=4))
def test_streams_are_merged_each_in_its_order(sizes: list[list[int]]) -> None:
    async def all_of() -> list[Chunk]:
        streams = [lists(part, of_part) for part, of_part in enumerate(sizes)]
        return [chunk async for together in merged(streams) for chunk in together]

    found = run(all_of())
    for part, of_part in enumerate(sizes):
        assert [chunk.content for chunk in found if chunk.part == part] == list(range(sum(of_part)))
    assert len(found) == sum(map(sum, sizes))


@pytest.mark.parametrize("error", [EngineError("it failed"), ApiError(400, "it failed"), ValueError("it failed")])
@given(LISTS, LISTS)
def test_the_error_of_one_stream_ends_all(error: Exception, sizes: list[int], others: list[int]) -> None:
    async def all_of() -> None:
        async with asyncio.timeout(30):
            async for _ in merged([lists(0, sizes, error), lists(1, others)]):
                continue

    with pytest.raises(type(error), match="it failed"):
        run(all_of())
