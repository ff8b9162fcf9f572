"""Program that measures a plan on a node, with the cores, the memory and the clock of that node; its agent starts it.

The front gets the run so far every few seconds, so that it has what was measured even where the node is lost.
"""

import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from engine.bench.planning.plan import Plan
from engine.bench.running.session import Session
from engine.errors import EngineError
from engine.history.run_file import run_bytes
from engine.machine.cores import allowed_cores
from engine.over_nodes import messages as m
from engine.process.channel import Channel, Message
from engine.process.pulse import Pulse
from engine.runs import CellRecord, RunRecord, RunStatus
from engine.samples import Samples

TELL_S, SEND_S = 0.5, 5.0
"""How often progress is reported, and the run so far is sent at most."""

_TO_PROGRAM: Any = m.ToProgram


class _Measuring:
    """One plan, and the Keeper of its session, which sends the run to the front."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._sending = channel, threading.Lock()
        self._session: Session | None = None
        self._is_stopped, self._is_over = threading.Event(), threading.Event()
        self._sent_at = 0.0

    def serve(self) -> None:
        """Measure the plan of the first message, and wait until the front hangs up. Raises EOFError, OSError."""
        order = self._channel.receive_one()
        listening = threading.Thread(target=self._listen, daemon=True)
        listening.start()
        threading.Thread(target=self._tell, daemon=True).start()
        done = self._measured(order)
        self._is_over.set()
        self._send(done)
        listening.join()

    def _measured(self, order: m.Measure) -> m.Measured:
        try:
            _stay_on(order.cores)
            session = Session(Plan.from_dict(order.plan), self)
        except EngineError as error:
            return m.Measured(b"", type(error).__name__, str(error))
        self._session = session
        if self._is_stopped.is_set():
            session.stop()
        try:
            return m.Measured(run_bytes(session.run()))
        except EngineError as error:
            return m.Measured(run_bytes(session.record), type(error).__name__, str(error))

    def _listen(self) -> None:
        """Stop the run when the front says so, or hangs up."""
        with suppress(EOFError, OSError):
            while True:
                self._channel.receive_one()
                self._stop()
        self._stop()

    def _stop(self) -> None:
        self._is_stopped.set()
        if self._session is not None:
            self._session.stop()

    def _tell(self) -> None:
        """Tell the progress, also while there is none, so that the front hears of this program."""
        with suppress(OSError):
            while not self._is_over.wait(TELL_S):
                now = self._session.progress if self._session is not None else None
                self._send(m.Progress(now.done, now.total, now.left_s) if now else m.Progress(0, 0, None))

    def _send(self, message: Message) -> None:
        with self._sending:
            self._channel.send(message)

    def _send_run(self, run: RunRecord) -> None:
        self._sent_at = time.monotonic()
        with suppress(OSError):  # the run ends by _listen then
            self._send(m.SoFar(run_bytes(run)))

    # as engine.bench.running.session.Keeper

    def begin(self, run: RunRecord) -> None:
        self._send_run(run)

    def cell(self, record: CellRecord) -> None:
        """Nothing: it goes with the run."""

    def sample(self, sample: Samples) -> None:
        if self._session is not None and time.monotonic() - self._sent_at >= SEND_S:
            self._send_run(self._session.record)

    def replaced(self, positions: list[int]) -> None:
        """Nothing: they go with the run."""

    def finish(self, status: RunStatus, outcome: Mapping[str, Any]) -> None:
        """Nothing: the last message has the end."""


def _stay_on(num_cores: int) -> None:
    """Keep this program and its workers on as many cores as the node lends: this thread, and what it starts."""
    allowed = allowed_cores()
    if num_cores < len(allowed) and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, allowed[:num_cores])


def main(end: socket.socket) -> None:
    """Measure one plan. Messages take the connection that comes with the heartbeat page."""
    with suppress(EOFError, OSError):
        pulse, far = Pulse.received_with_far(end)
        pulse.keep_beating()
        _Measuring(Channel(far or end, _TO_PROGRAM)).serve()
