"""Machine leases: measurements run exclusively, work that a caller waits for shares, background work yields."""

import threading
from types import TracebackType
from typing import Literal, Self

from engine.errors import ConfigError, PoolClosed

Kind = Literal["measurement", "benchmark", "shared", "interactive", "call", "background"]
"""Purpose of a lease.

measurement: nothing else runs at the same time. benchmark: a measurement that lets interactive work run between its
samples. shared: work that a user waits for, such as a download. interactive: trials, comparisons of them and loads of
the model that they run on. call: a trial for another program; none begins beside a benchmark, which lets those that
run finish. background: work that nobody waits for.
"""

EXCLUSIVE: frozenset[Kind] = frozenset({"measurement", "benchmark"})

_BESIDE: dict[Kind, frozenset[Kind]] = {
    "measurement": frozenset({"background"}),
    "benchmark": frozenset({"background", "interactive", "call"}),
    "shared": frozenset({"background", "interactive", "shared", "call"}),
    "interactive": frozenset({"background", "benchmark", "interactive", "shared", "call"}),
    "call": frozenset({"background", "interactive", "shared", "call"}),
    "background": frozenset(),
}
"""For each kind, the held kinds with which it is granted; an exclusive lease then waits for background work to end."""

YIELDS_WITHIN_S = 15.0
"""Longest wait for background work to end: it finishes a model load in progress."""


class MachineBusy(ConfigError):
    """Error: the machine is in use. holder: name of the lease that has it."""

    def __init__(self, text: str, holder: str) -> None:
        super().__init__(text)
        self.holder = holder


class Lease:
    """Shared or exclusive use of the machine until `release`; also a context manager."""

    def __init__(self, machine: "MachineLease", name: str, kind: Kind) -> None:
        self.name, self.kind = name, kind
        self.is_unwanted = False
        """True once a measurement waits for this background lease to be released."""
        self._machine = machine

    def release(self) -> None:
        """Release the lease. Safe to call twice."""
        self._machine._release(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.release()


class MachineLease:
    """Arbiter of the machine: each lease is granted or refused at once under one lock. Any thread may call it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: list[Lease] = []
        self._is_closed = False

    @property
    def is_measuring(self) -> bool:
        """True while a measurement holds the machine or waits for background work to end."""
        return any(lease.kind in EXCLUSIVE for lease in self._leases())

    @property
    def busy_with(self) -> str:
        """Name of the first lease held, background work excluded; empty if there is none."""
        return next((lease.name for lease in self._leases() if lease.kind != "background"), "")

    def acquire(self, name: str, kind: Kind) -> Lease:
        """Acquire a lease; a measurement first waits for background work to end.

        name: the work, worded to begin a sentence. Raises MachineBusy where a lease of an incompatible kind is held,
        PoolClosed after close().
        """
        with self._changed:
            self._check(name, kind)
            lease = Lease(self, name, kind)
            self._held.append(lease)
            if kind in EXCLUSIVE:
                self._await_background(lease)
            return lease

    def close(self) -> None:
        """Grant no more leases; waiting callers get PoolClosed."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _leases(self) -> list[Lease]:
        with self._changed:
            return list(self._held)

    def _check(self, name: str, kind: Kind) -> None:
        if self._is_closed:
            raise PoolClosed(f"{name}: the workbench has been closed. Start it again.")
        holder = next((lease for lease in self._held if lease.kind not in _BESIDE[kind]), None)
        if holder is not None:
            raise _refusal(holder, kind)

    def _await_background(self, lease: Lease) -> None:
        """Wait until no background lease is held; the new lease is already in force, so that nothing else begins."""
        try:
            for held in self._background():
                held.is_unwanted = True
            self._changed.wait_for(lambda: self._is_closed or not self._background(), YIELDS_WITHIN_S)
            if self._is_closed:
                raise PoolClosed(f"{lease.name}: the workbench has been closed. Start it again.")
            for holder in self._background():
                raise _refusal(holder, lease.kind)
        except BaseException:
            self._release(lease)
            raise

    def _background(self) -> list[Lease]:
        return [lease for lease in self._held if lease.kind == "background"]

    def _release(self, lease: Lease) -> None:
        with self._changed:
            if lease in self._held:
                self._held.remove(lease)
                self._changed.notify_all()


def _refusal(holder: Lease, kind: Kind) -> MachineBusy:
    state = "has exclusive use of the machine. Wait for it, or stop it, then try again."
    if kind in EXCLUSIVE:
        state = "is still running and would distort the measurement. Wait for it, or stop it."
    elif kind == "background":
        state = "has priority."
    return MachineBusy(f"{holder.name} {state}", holder.name)
