"""The program that loads a model, from the pool's side: started, asked for workers, and their deaths explained."""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from engine import errors
from engine.embedding import messages as m
from engine.errors import ModelError, WorkerDied
from engine.process.channel import Channel
from engine.process.child import Child

OnOpening = Callable[[Callable[[], object]], object]

_FROM_PROGRAM: Any = m.FromProgram
_FROM_WORKER: Any = m.FromWorker


class Link:
    """One worker, asked by one thread. The totals are of all that it has answered; compute_s in seconds.

    Raises EOFError or OSError when the worker ends before it has begun.
    """

    def __init__(self, channel: Channel, program: "Program") -> None:
        self._channel, self._program = channel, program
        self.pid: int = channel.receive_one().pid
        self.num_texts = self.num_tokens = 0
        self.compute_s = 0.0

    def ask(self, message: m.Embed) -> m.Vectors | m.Unusable:
        """Have texts embedded; raises EOFError or OSError when the worker has ended."""
        self._channel.send(message)
        answer: m.Vectors | m.Unusable = self._channel.receive_one()
        if isinstance(answer, m.Vectors):
            self.num_texts += len(message.texts)
            self.num_tokens += answer.num_tokens
            self.compute_s += answer.compute_s
        return answer

    @property
    def has_ended(self) -> bool:
        """True once the worker has hung up, also while it was asked nothing."""
        try:
            return not self._channel.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def ending(self) -> str:
        """How the worker, which has hung up, ended."""
        return self._program.ending_of(self.pid)

    def close(self) -> None:
        """Hang up, which ends the worker after the batch it computes."""
        with contextlib.suppress(OSError):
            self._channel.socket.shutdown(socket.SHUT_RDWR)
        self._channel.socket.close()


class Program:
    """A running program of workers. `loaded` is what it said of its model.

    The constructor returns when the model is loaded. `on_opening` gets a function that ends the load from any thread.
    Raises ModelError, or what the program reported.
    """

    def __init__(self, load: m.Load, on_opening: OnOpening | None = None) -> None:
        self._lock = threading.Lock()
        self._child = Child(
            "engine.embedding.worker", environment={"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        )
        self._channel = Channel(self._child.socket, _FROM_PROGRAM)
        if on_opening is not None:
            on_opening(self._child.kill)
        self.loaded = self._load(load)

    def _load(self, load: m.Load) -> m.Loaded:
        try:
            self._channel.send(load)
            message: m.Loaded | m.Failed = self._channel.receive_one()
        except (EOFError, OSError) as error:
            self.close()
            how = self._child.ending()
            raise ModelError(f"{load.path}: the program of the workers {how} while it loaded the model") from error
        if isinstance(message, m.Failed):
            self.close()
            raise getattr(errors, message.error, ModelError)(message.text)
        return message

    @property
    def pid(self) -> int:
        """Number of its process."""
        return self._child.pid

    def part(self) -> Link:
        """Another worker. Raises WorkerDied when the program, or the worker at once, has ended."""
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._lock:
                socket.send_fds(self._channel.socket, [m.PART], [theirs.fileno()])
            return Link(Channel(ours, _FROM_WORKER), self)
        except (EOFError, OSError) as error:
            ours.close()
            raise WorkerDied(f"no worker could be started{self._child.log_tail()}") from error

    def ending_of(self, pid: int) -> str:
        """How a worker that has hung up ended, in words, with the end of the program's log."""
        with self._lock, contextlib.suppress(EOFError, OSError):
            self._channel.socket.sendall(m.ending_asked(pid))
            return self._child.ending_of(self._channel.receive_one().status)
        return "ended" + self._child.log_tail()

    def close(self) -> None:
        """End the program and all its workers at once; safe to call twice."""
        self._child.close()
