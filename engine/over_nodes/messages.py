"""Messages between this program and the one that measures a plan on a node."""

from typing import Any

from engine.process.channel import Message


class Measure(Message, frozen=True):
    """Measure a plan, given as plain values, on at most `cores` cores; the first message."""

    plan: dict[str, Any]
    cores: int


class StopRun(Message, frozen=True):
    """End the run at once; what is measured stays."""


class Progress(Message, frozen=True):
    """Samples taken and in all, and seconds left where known."""

    done: int
    total: int
    left_s: float | None


class SoFar(Message, frozen=True):
    """The run so far, as the bytes of a run file."""

    run: bytes


class Measured(Message, frozen=True):
    """The last message: the run as the bytes of a run file, empty where none began, and the error that ended it (class
    name of engine.errors, and text), empty without one."""

    run: bytes
    error: str = ""
    text: str = ""


ToProgram = Measure | StopRun
FromProgram = Progress | SoFar | Measured
