"""Client of the fork server that loads a model: starts it, requests workers, and explains how workers ended."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from engine.embedding import messages as m
from engine.errors import ModelError, WorkerDied, named_error
from engine.owner import OwnerProcess
from engine.pool.watchdog import Watch, Watched, keep_watch
from engine.process.channel import Channel
from engine.process.child import Child, is_suspended
from engine.process.pulse import Pulse

_BEGINS_WITHIN_S = 60.0
"""A worker is forked within milliseconds; opening its model session may take seconds, many on a loaded machine."""

_ANSWERS_WITHIN_S = 5.0
"""Maximum seconds for the fork server to report how a worker ended."""

OnOpening = Callable[[Callable[[], object]], object]

_FROM_PROGRAM: Any = m.FromProgram
_FROM_WORKER: Any = m.FromWorker


class Link:
    """Connection to one worker, used by one thread. The totals cover all its answers; compute_s in seconds.

    Raises EOFError or OSError when the worker ends before it has started, or does not start in time.
    """

    def __init__(self, channel: Channel, pulse: Pulse, program: "Program") -> None:
        self._channel, self._program = channel, program
        self._stalled = ""
        self.watch = Watch(pulse.read, lambda: is_suspended(self.pid))
        self.pid: int = channel.receive_one(time.monotonic() + _BEGINS_WITHIN_S).pid
        channel.set_deadline(None)
        self.num_texts = self.num_tokens = 0
        self.compute_s = 0.0

    def ask(self, message: m.Embed) -> m.Vectors | m.Unusable:
        """Send texts and wait for their vectors; raises EOFError or OSError when the worker has ended."""
        self._channel.send(message)
        answer: m.Vectors | m.Unusable = self._channel.receive_one()
        if isinstance(answer, m.Vectors):
            self.num_texts += len(message.texts)
            self.num_tokens += answer.num_tokens or 0
            self.compute_s += answer.compute_s
        return answer

    @property
    def has_ended(self) -> bool:
        """True once the worker has closed its socket, also while no request was pending."""
        try:
            return not self._channel.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def ending(self) -> str:
        """Return how the worker, which has closed its socket, ended."""
        return self._stalled or self._program.ending_of(self.pid)

    def stall(self, reason: str) -> None:
        """Kill the stalled worker; a pending request sees the end."""
        self._stalled = reason
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self._channel.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, which ends the worker after its current batch; no effect in a fork of this process."""
        if not self._program.parent.is_this:
            return
        with contextlib.suppress(OSError):
            self._channel.socket.shutdown(socket.SHUT_RDWR)
        self._channel.socket.close()


class Program:
    """Running fork server, watched by a watchdog together with its workers. `loaded` is its reply about the model.

    The constructor returns when the model is loaded. `on_opening` is called with a function that cancels the load from
    any thread. Raises ModelError, or the error that the fork server reported.
    """

    def __init__(self, load: m.LoadEmbeddingModel, on_opening: OnOpening | None = None) -> None:
        self._lock = threading.Lock()
        self._child = Child(
            "engine.embedding.worker", environment={"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        )
        self.watch = Watch(Pulse.shared_over(self._child.socket).read, lambda: self._child.is_suspended)
        self._channel = Channel(self._child.socket, _FROM_PROGRAM)
        self._stalled = ""
        self._links: list[Link] = []
        self._is_over = threading.Event()
        threading.Thread(target=keep_watch, args=(self._watched, self._is_over), daemon=True).start()
        if on_opening is not None:
            on_opening(self._child.kill)
        self.loaded = self._load(load)

    def _load(self, load: m.LoadEmbeddingModel) -> m.Loaded:
        try:
            self._channel.send(load)
            message: m.Loaded | m.Failed = self._channel.receive_one()
        except (EOFError, OSError) as error:
            self.close()
            how = self._stalled or self._child.ending()
            raise ModelError(f"{load.path}: the fork server {how} while loading the model") from error
        if isinstance(message, m.Failed):
            self.close()
            raise named_error(message.error, message.text, ModelError)
        return message

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def parent(self) -> OwnerProcess:
        """The process that started it."""
        return self._child.parent

    def part(self) -> Link:
        """Fork another worker. Raises WorkerDied when the fork server or the new worker has ended or is stalled."""
        ours, theirs = socket.socketpair()
        try:
            pulse = Pulse.shared_over(ours)
            with theirs, self._lock:
                socket.send_fds(self._channel.socket, [m.PART], [theirs.fileno()])
            link = Link(Channel(ours, _FROM_WORKER), pulse, self)
            self._links = [*(other for other in self._links if not other.has_ended), link]
            return link
        except (EOFError, OSError) as error:
            ours.close()
            raise WorkerDied(f"no worker could be started{self._child.log_tail()}") from error

    def ending_of(self, pid: int) -> str:
        """Return how a worker that has closed its socket ended, in words, with the end of the fork server's log."""
        with self._lock, contextlib.suppress(EOFError, OSError):
            self._channel.socket.sendall(m.ending_asked(pid))
            deadline = time.monotonic() + _ANSWERS_WITHIN_S
            try:
                while (ended := self._channel.receive_one(deadline)).pid != pid:  # a late answer to an earlier question
                    pass
            finally:
                self._channel.set_deadline(None)
            return self._child.ending_of(ended.status)
        return "ended" + self._child.log_tail()

    def _watched(self) -> list[Watched]:
        return [self, *(link for link in self._links if not link.has_ended)] if self._child.is_alive else []

    def stall(self, reason: str) -> None:
        """Kill the stalled fork server, and with it its workers."""
        self._stalled = reason
        self._child.kill()
        self._child.hang_up()

    def close(self) -> None:
        """End the fork server and all its workers at once; safe to call twice."""
        self._is_over.set()
        self._child.close()
