"""Worker link: the transport of a worker's messages and the life of its process; here a socket pair and a child.

The pool knows a worker only by these two, so that a worker on another machine needs another link and nothing else.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from engine.pool import messages as m
from engine.process.channel import Channel
from engine.process.child import Child, huge_pages
from engine.process.outgoing import Sends
from engine.process.pulse import Pulse, Reading

_TO_POOL: Any = m.ToPool


class Transport(Sends, Protocol):
    """Messages to and from one worker. Only one thread may receive; sends must not overlap."""

    def receive(self) -> list[Any]:
        """Wait for messages of ToPool and return them; raises EOFError or OSError once the worker is gone."""


class Life(Protocol):
    """A worker's process: whether it runs, how to end it, and how it ended. started_at: monotonic seconds."""

    @property
    def started_at(self) -> float: ...

    @property
    def is_alive(self) -> bool: ...

    @property
    def is_suspended(self) -> bool:
        """True while a signal keeps the process from running."""

    @property
    def is_machine_lost(self) -> bool:
        """True where it ended with its machine, for which none of its jobs is to blame."""

    def hang_up(self) -> None:
        """End the connection, which makes the worker exit; does not wait. May be called from any thread."""

    def kill(self) -> None:
        """Kill the process without waiting for it. May be called from any thread."""

    def close(self, patience_s: float) -> None:
        """Hang up and wait for the process to exit; kill it after `patience_s` seconds. Safe to call twice."""

    def ending(self) -> str:
        """Describe how the process ended, as a predicate ("crashed (SIGSEGV)"); call `close` first."""

    def log_tail(self) -> str:
        """Return the tail of its log, worded as the end of a sentence; empty where nothing was logged."""


class WorkerLink(NamedTuple):
    """Connection to one started worker. heartbeat: reads its latest heartbeat and phase, without blocking; None while
    they are not known."""

    transport: Transport
    life: Life
    heartbeat: Callable[[], Reading | None]


LLAMA_CPP, TRANSFORMERS = "engine.pool.worker", "engine.programs.transformers_worker"
"""Worker programs: of GGUF files, and of folders of safetensors."""


def start_child(build: str = "", program: str = LLAMA_CPP) -> WorkerLink:
    """Start a worker as a child process; `build` is the folder of llama.cpp libraries that it loads, empty for those of
    the Python package."""
    child = Child(program, environment=huge_pages(), build=build)
    pulse = Pulse.shared_over(child.socket)
    return WorkerLink(Channel(child.socket, _TO_POOL), child, pulse.read)
