"""Remote node: the front's end of the connection to one agent."""

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.cluster import messages as c
from engine.cluster.listener import Listener
from engine.cluster.model_files import Have
from engine.cluster.remote_worker import RemoteWorker
from engine.errors import ConfigError, EngineError, WorkerDied, named_error
from engine.process.channel import Channel, Message
from engine.process.outgoing import Outgoing
from engine.protocol import NodeInfo

_FROM_AGENT: Any = c.FromAgent
_HELLO_S = 60.0
_START_S = 60.0
"""Longer than LOST_S, so that a worker that does not come is known from a node that is lost."""
ANSWER_S = 60.0
"""Time for the answer to a question, and for each one before it: an agent answers one after the other."""


@dataclass
class _Question:
    """A question that an agent has to answer by a value of this type within `within_s` seconds, of which `waited_s`
    have passed."""

    future: Future[Any]
    answers: Any
    within_s: float
    waited_s: float = 0.0


class RemoteNode:
    """A node with an agent: starts workers there, asks about its files, and notices its loss.

    name: as this connection calls it; given_name: as Ray lists it. cores: those that it lends; free_bytes: available
    memory as last reported; silent_s: seconds since the agent was heard, as `tick` counts them; loss: why it is lost,
    empty while it is not. on_lost is called once, from any thread.
    """

    def __init__(
        self,
        found: c.Found,
        name: str,
        end: socket.socket,
        listener: Listener,
        on_lost: Callable[["RemoteNode"], object],
    ) -> None:
        """Wait for the agent's first message. Raises WorkerDied, ConfigError for an agent of another version."""
        self.id, self.name, self.given_name, self.address = found.id, name, found.name, found.address
        self._listener, self._on_lost = listener, on_lost
        self._channel = Channel(end, _FROM_AGENT)
        self._lock = threading.Lock()
        self._workers: dict[int, RemoteWorker] = {}
        self._endings: dict[int, str] = {}
        self._asked: dict[int, _Question] = {}
        self._numbers = itertools.count(1)
        self.silent_s, self.loss = 0.0, ""
        self.hello = self._greet()
        self._outgoing = Outgoing(self._channel, self._hang_up)
        self.free_bytes = self.hello.free_bytes
        self.cores = min(found.cores, self.hello.cores)
        threading.Thread(target=self._listen, daemon=True).start()

    def _greet(self) -> c.Hello:
        try:
            hello = self._channel.receive_one(time.monotonic() + _HELLO_S)
            self._channel.set_deadline(None)
        except (EOFError, OSError) as error:
            self._channel.socket.close()
            raise WorkerDied(f"node {self.name}: its agent ended before it said what the node is ({error})") from error
        except (msgspec.MsgspecError, RecursionError):
            hello = None
        if not isinstance(hello, c.Hello) or hello.protocol != c.PROTOCOL:
            self._channel.socket.close()
            raise ConfigError(f"node {self.name} has another version of Logitbench: install the same one there")
        return hello

    @property
    def is_lost(self) -> bool:
        """True once it can be used no more."""
        return bool(self.loss)

    def start_worker(self, program: str, build: str) -> RemoteWorker:
        """Start a worker program and return it once it has dialled in. Raises WorkerDied."""
        token, dialled = self._listener.expect()
        number = next(self._numbers)
        self.tell(c.StartWorker(number, token, program, build))
        end = time.monotonic() + _START_S
        try:
            while True:
                try:
                    connection = dialled.result(0.1)
                    break
                except CancelledError:
                    raise WorkerDied(f"node {self.name}: {self.loss or 'the cluster was closed'}") from None
                except FutureTimeout:
                    reason = self.loss or self._endings.pop(number, "")
                    if reason or time.monotonic() > end:
                        raise WorkerDied(
                            f"node {self.name}: the worker {reason or f'did not dial in within {_START_S:g} s'}"
                        ) from None
        finally:
            self._listener.forget(token)
        worker = RemoteWorker(number, self.name, connection, self.tell)
        with self._lock:
            self._workers[number] = worker
            ending, lost = self._endings.pop(number, ""), self.loss
        if lost:
            worker.lost(lost)
        elif ending:
            worker.ended(ending, "")
        return worker

    def ask(self, what: str, *values: Any) -> Any:
        """Return the agent's answer to a question, see engine.cluster.questions.

        Raises WorkerDied if the node is lost or does not answer in time, or the error that it reports.
        """
        return self._asking(what, values, Any).result()

    def call(self, method: str, *arguments: Any) -> "Future[Have]":
        """As engine.cluster.file_sending.FilesOfNode."""
        return self._asking(method, arguments, Have | None)

    def _asking(self, what: str, values: Sequence[Any], answers: Any) -> "Future[Any]":
        """Ask, and return the future answer, of this type: that of the agent, or an error once the node is lost or the
        time for it is over."""
        number, future = next(self._numbers), Future[Any]()
        with self._lock:
            if self.loss:
                future.set_exception(WorkerDied(f"node {self.name}: {self.loss}"))
                return future
            self._asked[number] = _Question(future, answers, ANSWER_S * (1 + len(self._asked)))
        self.tell(c.Ask(number, what, list(values)))
        return future

    def info(self, num_workers: int = 0, reason: str = "", difference: str = "") -> NodeInfo:
        """Return its state; num_workers: of the pool that asks; reason, difference: as that pool tells them."""
        hello = self.hello
        return NodeInfo(
            self.name, self.address, self.cores, hello.memory_bytes, self.free_bytes, hello.cpu, hello.llama,
            num_workers, reason, difference, self.id, self.given_name,
        )  # fmt: skip

    def tell(self, message: Message) -> None:
        """Send a message to the agent; does not block."""
        self._outgoing.send(message)

    def tick(self, elapsed_s: float) -> None:
        """Count `elapsed_s` more seconds without a message or an answer, and tell the agent that this program runs. The
        node is given up after LOST_S, a question once its time is over."""
        self.silent_s += elapsed_s
        if self.silent_s > c.LOST_S:
            self.lose(f"it was silent for {c.LOST_S:g} s")
        else:
            self.tell(c.StillHere())
            self._give_up_questions(elapsed_s)

    def _give_up_questions(self, elapsed_s: float) -> None:
        with self._lock:
            for question in self._asked.values():
                question.waited_s += elapsed_s
            late = {number: one for number, one in self._asked.items() if one.waited_s >= one.within_s}
            for number in late:
                del self._asked[number]
        for question in late.values():
            sentence = f"node {self.name} has not answered for {question.waited_s:.0f} s"
            _resolve(question.future, WorkerDied(f"{sentence}: see whether its disk hangs, and try again"))

    def lose(self, reason: str) -> None:
        """End the connection: every worker counts as lost with its node, every question as unanswered."""
        with self._lock:
            if self.loss:
                return
            self.loss = reason
            workers, asked = list(self._workers.values()), list(self._asked.values())
        self._outgoing.close()
        self._hang_up()
        for question in asked:
            _resolve(question.future, WorkerDied(f"node {self.name}: {reason}"))
        self._on_lost(self)
        for worker in workers:
            worker.lost(reason)

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._channel.socket.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        reason = "its agent ended"
        try:
            while True:
                for message in self._channel.receive():
                    self._handle(message)
                self.silent_s = 0.0
        except (msgspec.MsgspecError, RecursionError) as error:
            reason = f"its agent sent what is no message ({error})"
        except (EOFError, OSError):
            pass
        self.lose(reason)
        self._channel.socket.close()

    def _handle(self, message: Any) -> None:
        match message:
            case c.Report():
                self.free_bytes = message.free_bytes
                for beat in message.beats:
                    with self._lock:
                        worker = self._workers.get(beat.worker)
                    if worker is not None:
                        worker.beat(beat)
            case c.Ended():
                with self._lock:
                    worker = self._workers.pop(message.worker, None)
                    if worker is None:
                        self._endings[message.worker] = message.ending
                if worker is not None:
                    worker.ended(message.ending, message.log)
            case c.Answer():
                with self._lock:
                    asked = self._asked.pop(message.number, None)
                if asked is not None:
                    _resolve(asked.future, _answer(message, asked.answers))


def _answer(message: c.Answer, answers: Any) -> Any:
    """Return what an agent answered, of this type, or the error that it reports."""
    if message.error:
        return named_error(message.error, message.text)
    try:
        return msgspec.convert(message.value, answers)
    except (msgspec.MsgspecError, RecursionError) as error:
        return WorkerDied(f"the node answered with what is no answer ({error}): install the same Logitbench there")


def _resolve(future: "Future[Any]", answer: Any) -> None:
    with contextlib.suppress(InvalidStateError):  # lost at the same moment
        if isinstance(answer, EngineError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
