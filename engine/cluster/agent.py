"""Agent: runs on a node, starts worker programs there, reports their heartbeats, and ends with the front.

It holds each worker's lifeline: the worker ends with this process, and this process with its connection to the front.
"""

import os
import select
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from engine.cluster import messages as c
from engine.cluster.listener import dial
from engine.cluster.node_files import NodeFiles
from engine.cluster.questions import questions
from engine.errors import ConfigError, EngineError
from engine.machine.cores import cpu_name, num_cores
from engine.machine.fingerprint import EMBEDDING_PACKAGES, SOURCES, about_llama, sources, versions
from engine.machine.memory import available_memory
from engine.models.folder_specs import PACKAGES
from engine.process.channel import Channel, Message
from engine.process.child import Child, huge_pages
from engine.process.pulse import Pulse
from engine.settings import Settings

_TO_AGENT: Any = c.ToAgent
_QUICK_S = 0.02
"""How often a worker that is being ended is looked at."""

OF_RAY = "OMP_NUM_THREADS"
"""Variable that Ray sets to 1 for its own tasks, and that would limit a worker to one thread."""


class _Worker:
    """A worker program on this node; kill_at: when it is killed if it has not ended, monotonic seconds."""

    def __init__(self, order: c.StartWorker, host: str, port: int) -> None:
        """Raises OSError if the front cannot be dialled, ProgramFailed if no process can be started."""
        with dial(host, port, order.token) as far:
            self.child = Child(order.program, environment=huge_pages(), build=order.build)
            self._pulse = Pulse.shared_over(self.child.socket, far)
        self.kill_at: float | None = None

    def beat(self, number: int) -> c.Beat:
        return c.Beat(number, *self._pulse.read(), self.child.is_suspended)

    def end(self, patience_s: float) -> None:
        self.child.hang_up()
        if patience_s <= 0:
            self.child.kill()
        self.kill_at = time.monotonic() + patience_s

    def ended(self, number: int) -> c.Ended:
        self.child.close()
        return c.Ended(number, self.child.ending(), self.child.log_tail())


class Agent:
    """Agent of one node, connected to the front at `host` and `port`."""

    def __init__(self, host: str, port: int, token: bytes, home: Path) -> None:
        """Dial the front. home: where models are kept that it sends. Raises OSError."""
        self._front = (host, port)
        self._channel = Channel(dial(host, port, token), _TO_AGENT)
        self._sending = threading.Lock()
        self._workers: dict[int, _Worker] = {}
        self._answering = ThreadPoolExecutor(1, "logitbench-files")
        self._files = NodeFiles(home)
        self._questions = questions(self._files)

    def serve(self) -> None:
        """Serve until the front hangs up or is silent for LOST_S; every worker has then ended. A pause of this program
        is no silence of the front."""
        inbox = select.poll()
        inbox.register(self._channel.socket, select.POLLIN)
        heard_at = reported_at = time.monotonic()
        try:
            self._send(_hello())
            while True:
                is_quick = any(worker.kill_at is not None for worker in self._workers.values())
                if inbox.poll(1000 * (_QUICK_S if is_quick else c.REPORT_S)):
                    for message in self._channel.receive():
                        self._handle(message)
                    heard_at = time.monotonic()
                elif time.monotonic() - heard_at >= c.LOST_S:
                    return
                self._look()
                if time.monotonic() - reported_at >= c.REPORT_S:
                    reported_at = time.monotonic()
                    beats = [worker.beat(number) for number, worker in self._workers.items()]
                    self._send(c.Report(available_memory(), beats))
        except (EOFError, OSError):
            return
        finally:
            self.close()

    def close(self) -> None:
        """End every worker, and the connection."""
        self._channel.socket.close()
        for worker in self._workers.values():
            worker.end(0.0)
        while self._workers:
            self._workers.popitem()[1].child.close()
        self._answering.shutdown(wait=False, cancel_futures=True)
        self._files.close()

    def _send(self, message: Message) -> None:
        with self._sending:
            self._channel.send(message)

    def _handle(self, message: c.ToAgent) -> None:
        match message:
            case c.StartWorker():
                self._start(message)
            case c.EndWorker():
                if message.worker in self._workers:
                    self._workers[message.worker].end(message.patience_s)
            case c.Ask():
                self._answering.submit(self._answer, message)

    def _start(self, order: c.StartWorker) -> None:
        try:
            self._workers[order.worker] = _Worker(order, *self._front)
        except (EngineError, OSError) as error:
            self._send(c.Ended(order.worker, f"could not be started: {error}", ""))

    def _look(self) -> None:
        """Report the workers that have ended, and kill those whose time to end is over."""
        for number, worker in list(self._workers.items()):
            if not worker.child.is_alive:
                del self._workers[number]
                ended = worker.ended(number)
                self._send(c.Report(available_memory(), [worker.beat(number)]))  # at what it ended, for the blame
                self._send(ended)
            elif worker.kill_at is not None and worker.kill_at < time.monotonic():
                worker.child.kill()

    def _answer(self, asked: c.Ask) -> None:
        """Answer a question, on a thread of its own: disks may be slow."""
        try:
            question = self._questions.get(asked.what)
            if question is None:
                raise ConfigError(
                    f"the node does not know the question {asked.what}: install the same Logitbench there"
                )
            answer = c.Answer(asked.number, question(*asked.values))
        except EngineError as error:
            answer = c.Answer(asked.number, error=type(error).__name__, text=str(error))
        except Exception as error:  # an answer must come, or the front would wait for it
            answer = c.Answer(asked.number, error="EngineError", text=f"{asked.what}: {error!r}")
        try:
            self._send(answer)
        except OSError:
            return


def run(host: str, port: int, token: bytes) -> None:
    """Run an agent in this process until the front is gone. Raises OSError if the front cannot be dialled."""
    os.environ.pop(OF_RAY, None)
    Agent(host, port, token, Settings.from_environment().home).serve()


def _hello() -> c.Hello:
    try:
        llama = about_llama()
    except EngineError as error:
        llama = {"error": str(error)}
    memory = (psutil.virtual_memory().total, available_memory())
    packages = versions({*EMBEDDING_PACKAGES, *PACKAGES}) | {SOURCES: sources()}
    return c.Hello(c.PROTOCOL, packages, os.getpid(), cpu_name(), num_cores(), *memory, llama)
