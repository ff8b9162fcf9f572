"""The workers of one pool: started together, listened to, replaced, ended."""

import logging
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from typing import Protocol

from engine.errors import JobTimeout, PoolClosed, WorkerDied
from engine.pool import messages as m
from engine.pool.listening import check_may_wait, listening
from engine.pool.member import Member
from engine.pool.watchdog import keep_watch
from engine.process.channel import Message

_log = logging.getLogger(__name__)


class Owner(Protocol):
    """Who hears what the workers say, each worker from a thread of its own."""

    def on_message(self, member: Member, message: m.ToPool) -> None:
        """A worker said something."""

    def on_death(self, member: Member, index: int) -> None:
        """A worker's end of the socket is closed."""


class Crew:
    """`size` workers, each told `load(index)`, with the llama.cpp libraries of the folder `build` if one is named.

    Ends them when it is closed or no longer referred to. It holds its owner weakly, so that a pool that nobody holds,
    and that has no open job, is collected and its workers end.
    """

    def __init__(
        self,
        size: int,
        load: Callable[[int], m.Load],
        owner: Owner,
        on_progress: Callable[[float], object],
        build: str = "",
    ) -> None:
        self._load, self._owner, self._on_progress, self._build = load, weakref.ref(owner), on_progress, build
        self._fractions = [0.0] * size
        self._members: list[Member | None] = [None] * size
        self._is_aborted = False
        self._is_over = threading.Event()
        self.close = weakref.finalize(self, _close, self._members, self._is_over)

    @property
    def alive(self) -> list[Member]:
        """The workers that have loaded and still run."""
        return [member for member in self._members if member is not None and member.is_alive]

    @property
    def is_closed(self) -> bool:
        """True once all workers have been told to end."""
        return not self.close.alive

    def start_all(self) -> None:
        """Load all at the same time; the first failure ends the others and is raised, PoolClosed after abort().

        What `on_progress` raises ends the load too, as does an interrupt meanwhile.
        """
        watched = partial(_present, self._members)
        threading.Thread(target=keep_watch, args=(watched, self._is_over), daemon=True).start()
        failures: list[Exception] = []

        def start(index: int) -> None:
            try:
                self.start(index)
            except Exception as error:
                failures.append(error)

        starters = [threading.Thread(target=start, args=(index,), daemon=True) for index in range(len(self._members))]
        for starter in starters:
            starter.start()
        try:
            for starter in starters:
                starter.join()
        except BaseException:
            self.abort()
            raise
        if self._is_aborted:
            raise PoolClosed("the load was ended before the model was ready: open the pool again")
        if failures:
            self.close()
            raise failures[0]

    def abort(self) -> None:
        """End a load from another thread at once, also where its workers hang."""
        self._is_aborted = True
        for member in self._members:
            if member is not None:
                member.kill()
        self.close()

    def start(self, index: int) -> None:
        """Start one worker, or another in the place of a dead one; returns when it is ready. Raises ModelError."""
        fractions, on_progress = self._fractions, self._on_progress

        def progress(fraction: float) -> None:
            fractions[index] = fraction
            on_progress(sum(fractions) / len(fractions))

        member = Member(self._load(index), progress, self._build)
        self._members[index] = member
        if not self.is_closed:
            member.start()
        if self.is_closed:
            member.close(patience_s=0.0)
            return
        threading.Thread(target=_listen, args=(self._owner, member, index), daemon=True).start()

    def ask(self, make: Callable[[int], Message]) -> m.Answer:
        """The answer of the worker with the fewest jobs; raises PoolClosed, WorkerDied, or what the worker says."""
        check_may_wait()
        members = self.alive
        if self.is_closed:
            raise PoolClosed("this pool is closed: open another")
        if not members:
            raise WorkerDied("the worker has ended and another is being started: try again in a few seconds")
        return min(members, key=lambda member: len(member.jobs)).call(make).result()

    def measure(self, timeout: float | None) -> list[dict[str, float]]:
        """Each worker's own figures; raises JobTimeout when one has not told them after `timeout` seconds."""
        check_may_wait()
        futures = [member.call(m.Measure) for member in self.alive]
        if wait(futures, timeout).not_done:
            raise JobTimeout(f"a worker gave no figures within {timeout:g} s: it is in a long step, or hangs")
        return [future.result().figures for future in futures]


def _listen(owner: "weakref.ref[Owner]", member: Member, index: int) -> None:
    with listening():
        try:
            _deliver(owner, member)
        except Exception:
            # a job whose worker nobody listens to would never end: the worker counts as dead
            _log.exception("what a worker said could not be delivered")
        alive = owner()
        if alive is not None:
            alive.on_death(member, index)


def _deliver(owner: "weakref.ref[Owner]", member: Member) -> None:
    """Hand over what the worker says until it ends, or its owner has."""
    while True:
        try:
            messages = member.channel.receive()
        except (EOFError, OSError):
            return
        alive = owner()
        if alive is None:
            return
        for message in messages:
            alive.on_message(member, message)
        del alive


def _present(members: list[Member | None]) -> list[Member]:
    return [member for member in members if member is not None]


def _close(members: list[Member | None], is_over: threading.Event) -> None:
    """End all workers at once, then wait for each."""
    is_over.set()
    for member in _present(members):
        member.hang_up()
    for member in _present(members):
        member.close()
