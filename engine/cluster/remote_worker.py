"""Remote worker: the life of a worker program on another node, as its agent reports it."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable

from engine.cluster import messages as c
from engine.owner import OwnerProcess
from engine.process.pulse import Reading

FRESH_S = 1.5
"""A heartbeat that the agent has not confirmed for this long says nothing about the worker: the network stalls."""
_GRACE_S = 1.0


class RemoteWorker:
    """A worker program on a node; engine.pool.worker_link.Life documents its methods. `socket` carries its messages.

    node: name of the node, for messages. tell: sends a message to the node's agent without blocking.
    """

    def __init__(self, number: int, node: str, end: socket.socket, tell: Callable[[c.EndWorker], None]) -> None:
        self.number, self.node, self.socket, self._tell = number, node, end, tell
        self.started_at = self._heard_at = time.monotonic()
        self.is_suspended = False
        self._reading = Reading(0, 0, 0, 0)
        self._over = threading.Event()
        self._closing = threading.Lock()
        self._ending = self._log = self._lost = ""
        self._process = OwnerProcess()

    @property
    def is_alive(self) -> bool:
        """False once its agent has reported its end, or was lost."""
        return not self._over.is_set()

    @property
    def is_machine_lost(self) -> bool:
        """True where it ended with its node."""
        return bool(self._lost)

    def heartbeat(self) -> Reading | None:
        """Return what its agent reported last; None while that is not fresh."""
        return self._reading if time.monotonic() - self._heard_at < FRESH_S else None

    def hang_up(self) -> None:
        """End the connection, which makes the worker exit; does nothing in a fork."""
        if not self._process.is_this:
            return
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """Have the agent kill it."""
        self._tell(c.EndWorker(self.number, 0.0))

    def close(self, patience_s: float) -> None:
        """Hang up and wait until its agent reports its end, or is lost; not at all without patience. Safe to call
        twice."""
        if not self._process.is_this:
            return
        self.hang_up()
        if self.is_alive:
            self._tell(c.EndWorker(self.number, patience_s))
            self._over.wait(patience_s + _GRACE_S if patience_s else 0.0)
        with self._closing:
            self.socket.close()

    def ending(self) -> str:
        """Describe how it ended, and where."""
        if self._lost:
            return f"was lost with its node {self.node}: {self._lost}"
        if not self._ending:
            return f"ended its connection; its node {self.node} has not said why"
        words, log, tail = self._ending.partition(self._log) if self._log else (self._ending, "", "")
        return f"{words} on node {self.node}{log}{tail}"

    def log_tail(self) -> str:
        """Return the tail of its log, once it has ended."""
        return self._log

    # as its agent reports

    def beat(self, beat: c.Beat) -> None:
        """Note a heartbeat."""
        self._reading = Reading(beat.num_beats, beat.num_stamps, beat.phase, beat.job)
        self.is_suspended = beat.is_suspended
        self._heard_at = time.monotonic()

    def ended(self, ending: str, log: str) -> None:
        """Note how the program ended."""
        self._ending, self._log = ending, log
        self._over.set()
        self.hang_up()

    def lost(self, reason: str) -> None:
        """Note that its node is lost, for this reason."""
        if self.is_alive:
            self._lost = reason
            self._over.set()
        self.hang_up()
