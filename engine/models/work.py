"""What a Download and a QuantiseJob have in common: work in a thread of its own, whose progress anyone may look at."""

from typing import Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Progress(Protocol):
    """How far work is. total_bytes is 0 and left_s NaN where they are not known; share is 0 to 1."""

    @property
    def state(self) -> str: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def share(self) -> float: ...
    @property
    def left_s(self) -> float: ...


class Work(Protocol[T_co]):
    """Begun once; `result` waits, and raises the EngineError that ended it, also after `cancel`."""

    @property
    def progress(self) -> Progress: ...
    def start(self) -> object: ...
    def cancel(self) -> None: ...
    def result(self, timeout: float | None = None) -> T_co: ...
