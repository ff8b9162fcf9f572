"""Threads of a server's requests: one with the event loop, which reads, and one that delivers what came to the jobs."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from queue import SimpleQueue
from typing import Any, TypeVar

from engine.delivery import call_back, check_may_wait, listening
from engine.errors import PoolClosed

ENDS_WITHIN_S = 5.0
HAND_OVER_S = 0.001
"""Shortest time between two deliveries."""
T = TypeVar("T")
_Call = tuple[Callable[..., object], tuple[object, ...]]
"""A function that is called in the delivery thread, and its arguments."""


class ServerLoop:
    """An asyncio loop in a daemon thread, and a thread that calls what is to be delivered, in order.

    What a job calls back may take long, so that it runs beside the loop, which notes when each token comes.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._deliveries: SimpleQueue[list[_Call] | None] = SimpleQueue()
        self._undelivered: list[_Call] = []
        self._handed_over = 0.0
        self._is_closed, self._lock = False, threading.Lock()
        self._begun: set[Future[Any]] = set()
        self._threads = [
            threading.Thread(target=run, name=f"logitbench-server-{name}", daemon=True)
            for name, run in (("loop", self._run), ("delivery", self._deliver))
        ]
        for thread in self._threads:
            thread.start()

    def begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine; return its future. Raises PoolClosed."""
        with self._lock:
            if not self._is_closed:
                begun = asyncio.run_coroutine_threadsafe(work, self._loop)
                self._begun.add(begun)
                begun.add_done_callback(self._begun.discard)
                return begun
        work.close()
        raise PoolClosed("this engine is closed: connect again")

    def soon(self, call: Callable[[], object]) -> None:
        """Call a function in this loop, from any thread: a task's cancel, for example."""
        with self._lock:
            if not self._is_closed:  # closing cancels all tasks
                self._loop.call_soon_threadsafe(call)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for its result. Raises what it raises, and PoolClosed."""
        try:
            check_may_wait()
        except BaseException:
            work.close()
            raise
        try:
            return self.begin(work).result()
        except CancelledError:
            raise PoolClosed("this engine was closed meanwhile: connect again") from None

    def deliver(self, call: Callable[..., object], *args: object) -> None:
        """Call a function in the delivery thread, after those given before. Only for what runs in this loop.

        What its tasks deliver within HAND_OVER_S is handed over at once: the threads take turns less often.
        """
        self._undelivered.append((call, args))
        if len(self._undelivered) == 1:
            self._loop.call_at(self._handed_over + HAND_OVER_S, self._hand_over)

    def _hand_over(self) -> None:
        calls, self._undelivered, self._handed_over = self._undelivered, [], self._loop.time()
        self._deliveries.put(calls)

    def close(self, last: Coroutine[Any, Any, object]) -> None:
        """Cancel all that runs, run `last`, and end the threads. Safe to call twice, and from a delivery."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            if not was_closed:
                asyncio.run_coroutine_threadsafe(self._end(last), self._loop)
        if was_closed:
            last.close()
            return
        for thread in self._threads:
            if threading.current_thread() is not thread:
                thread.join(ENDS_WITHIN_S)

    async def _end(self, last: Coroutine[Any, Any, object]) -> None:
        for begun in list(self._begun):  # which cancel the tasks that they have begun themselves
            begun.cancel()
        running = [task for task in asyncio.all_tasks(self._loop) if task is not asyncio.current_task()]
        try:
            await asyncio.gather(*running, return_exceptions=True)
            await last
        finally:
            self._hand_over()
            self._deliveries.put(None)
            self._loop.stop()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _deliver(self) -> None:
        with listening():
            while (calls := self._deliveries.get()) is not None:
                for call, args in calls:
                    call_back(call, "the delivery of an answer", *args)
