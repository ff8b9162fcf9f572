"""Child programs that answer requests: a single one, and a service that is kept warm for hostile input."""

import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from engine.errors import LimitExceeded, WorkerDied, named_error
from engine.process.channel import Channel
from engine.process.child import Child
from engine.process.limits import Limits
from engine.process.serving import Ping, Reply

_START_S = 60.0
"""Time allowed for a program's interpreter and imports to load, on a busy machine."""

SILENCE_S = 5.0
"""An idle program that is silent for this long, or one that is suspended (SIGSTOP) for this long, is ended."""

_LOOK_EVERY_S = 0.5
"""Interval between looks at whether a program that computes an answer is suspended."""


class Program:
    """Child process that runs `serving.serve`: one request at a time, from any thread; stop() aborts a pending request.

    answers: type of its answers. does: completes "the process that ..." in error messages.
    """

    def __init__(
        self,
        module: str,
        *words: str,
        does: str,
        answers: Any = Any,
        limits: Limits | None = None,
        environment: Mapping[str, str] | None = None,
        build: str = "",
    ) -> None:
        self._does = does
        self._decode = msgspec.msgpack.Decoder(answers).decode
        self._lock = threading.Lock()
        self._is_ready = self._is_stopped = False
        self.is_spent = False
        """True once a request took so much memory that later ones might fail for it."""
        self._child = Child(module, *words, limits=limits, environment=environment, build=build)
        self._channel = Channel(self._child.socket, Reply)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    @property
    def started_at(self) -> float:
        """Start time, monotonic seconds."""
        return self._child.started_at

    @property
    def is_alive(self) -> bool:
        """False once the process has ended."""
        return self._child.is_alive

    def ask(self, request: Any, deadline_s: float | None = None, about: str = "") -> Any:
        """Send a request and return its answer. about: file or text named at the start of an error message.

        Waits up to `deadline_s` seconds for earlier requests, then as long for the answer. Raises LimitExceeded after
        that; the program is then terminated if it was computing this request, and left running if another request kept
        it busy. Raises LimitExceeded too where the program was suspended for SILENCE_S and terminated for it, or ended
        with an earlier request; WorkerDied if it ended by itself or was stopped by stop(), or the EngineError that it
        reports.
        """
        reply = self._reply(request, deadline_s, about)
        if reply.error:
            raise named_error(reply.error, reply.text)
        return self._decode(reply.answer)

    def is_awake(self) -> bool:
        """Wait until the program has started and answers; return False once it has ended or was silent for SILENCE_S.

        A program that stood still is ended.
        """
        try:
            self._reply(Ping(), SILENCE_S)
        except (LimitExceeded, WorkerDied):
            return False
        return True

    def _reply(self, request: Any, deadline_s: float | None, about: str = "") -> Reply:
        prefix = f"{about}: " if about else ""
        is_first = self._lock.acquire(blocking=False)
        if not (is_first or self._lock.acquire(timeout=-1 if deadline_s is None else deadline_s)):
            raise LimitExceeded(
                f"{prefix}the process that {self._does} was busy for {deadline_s:.2g} s: try again", is_busy=True
            )
        try:
            if not (is_first or self._is_stopped or self.is_alive):
                text = f"{prefix}the process that {self._does} ended with an earlier request: try again"
                raise LimitExceeded(text, is_busy=True)
            return self._exchange(request, None if deadline_s is None else time.monotonic() + deadline_s)
        except _Suspended:
            self._child.close(patience_s=0.0)
            raise LimitExceeded(
                f"{prefix}the process that {self._does} was suspended (SIGSTOP) for {SILENCE_S:g} s and was ended: "
                "try again",
                is_busy=True,
            ) from None
        except TimeoutError:
            self._child.close(patience_s=0.0)
            raise LimitExceeded(f"{prefix}the process that {self._does} took longer than {deadline_s:.2g} s") from None
        except (EOFError, OSError, ValueError) as error:  # ValueError: closed meanwhile
            self._child.close(patience_s=1.0)
            how = "was stopped before it answered" if self._is_stopped else self._child.ending()
            raise WorkerDied(f"{prefix}the process that {self._does} {how}") from error
        finally:
            self._lock.release()

    def _exchange(self, request: Any, deadline: float | None) -> Reply:
        if not self._is_ready:  # the start-up does not count towards the deadline, but has its own
            started = time.monotonic()
            self._receive(started + _START_S)
            self._is_ready = True
            deadline = deadline and deadline + (time.monotonic() - started)
        self._channel.set_deadline(deadline)
        self._channel.send(request)
        reply: Reply = self._receive(math.inf if deadline is None else deadline)
        self.is_spent |= reply.is_spent
        return reply

    def _receive(self, deadline: float) -> Any:
        """Wait for one message. Raises TimeoutError at the deadline, _Suspended once the program did not run for
        SILENCE_S: looks in a row are counted, so that a pause of this process itself does not count.
        """
        num_looks = 0
        while True:
            look_at = time.monotonic() + _LOOK_EVERY_S
            try:
                return self._channel.receive_one(min(deadline, look_at))
            except TimeoutError:
                if deadline <= look_at:
                    raise
            num_looks = num_looks + 1 if self._child.is_suspended else 0
            if num_looks * _LOOK_EVERY_S > SILENCE_S:
                raise _Suspended

    def stop(self) -> None:
        """Kill the program, which also aborts a pending request."""
        self._is_stopped = True
        self._child.kill()

    def close(self) -> None:
        """Kill the program and free its resources; safe to call twice, and while another thread waits for an answer."""
        self.stop()
        with self._lock:
            self._child.close()


class _Suspended(Exception):
    """The program was suspended for SILENCE_S."""


class Service:
    """A Program that is always available: replaced when it ends, stands still or has used up its memory, with a second
    one already running if `has_spare`.

    For input that may be hostile: if the process ends, that is attributed to the input and raised as an EngineError.
    """

    def __init__(
        self,
        module: str,
        *words: str,
        does: str,
        answers: Any = Any,
        limits: Limits | None = None,
        has_spare: bool = False,
    ) -> None:
        self._does, self._num_kept = does, 1 + has_spare
        self._start = partial(Program, module, *words, does=does, answers=answers, limits=limits)
        self._lock = threading.Lock()
        self._given_back = threading.Condition(self._lock)
        self._is_closed = False
        self._programs: list[Program] = []
        self._busy: set[Program] = set()
        self._fill()

    def ask(self, request: Any, deadline_s: float, about: str = "") -> Any:
        """Send a request and return its answer.

        Raises LimitExceeded if it takes longer than `deadline_s` seconds, waits as long for earlier ones, needs more
        memory than the limit, or ends the process; WorkerDied after close(); or the EngineError that the program
        reports.
        """
        with self.claimed(deadline_s) as program:
            try:
                return program.ask(request, deadline_s, about)
            except WorkerDied as error:
                raise LimitExceeded(f"{error}. The input is too large or too complex: simplify it.") from error

    @contextmanager
    def claimed(self, within_s: float) -> Iterator[Program]:
        """Reserve a program for requests that build on each other; it has started and answers.

        Raises LimitExceeded where none is free within `within_s` seconds, WorkerDied after close().
        """
        program = self._take(within_s)
        for _ in range(self._num_kept):  # all of them may stand still
            if program.is_awake():
                break
            self._give_back(program)  # which replaces it
            program = self._take(within_s)
        try:
            yield program
        finally:
            self._give_back(program)

    def stop(self) -> None:
        """End the processes, which the next request replaces; callers with a request in progress get LimitExceeded.

        An idle one ends too, as it may hold files between two requests. All have ended when this returns.
        """
        with self._lock:
            programs = list(self._programs)
        for program in programs:
            program.close()

    def close(self) -> None:
        """Terminate all processes; pending requests fail. Safe to call twice."""
        with self._lock:
            self._is_closed = True
            programs, self._programs = self._programs, []
            self._given_back.notify_all()
        for program in programs:
            program.close()

    def _fill(self) -> None:
        if self._is_closed:
            raise WorkerDied(f"the process that {self._does} has been closed")
        for program in [one for one in self._programs if one not in self._busy and not one.is_alive]:
            self._programs.remove(program)  # it ended, or was killed, while idle
            program.close()
        while len(self._programs) < self._num_kept:
            self._programs.append(self._start())

    def _take(self, within_s: float) -> Program:
        """Claim an idle program: a request queued behind another one might fail together with it."""
        deadline = time.monotonic() + within_s
        with self._lock:
            while True:
                self._fill()
                for program in self._programs:
                    if program not in self._busy:
                        self._busy.add(program)
                        return program
                if not self._given_back.wait(max(deadline - time.monotonic(), 0)):
                    raise LimitExceeded(
                        f"the process that {self._does} was busy until the time limit: try again", is_busy=True
                    )

    def _give_back(self, program: Program) -> None:
        is_usable = program.is_alive and not program.is_spent
        if not is_usable:
            program.close()
        with self._lock:
            self._busy.remove(program)
            if not is_usable and program in self._programs:
                self._programs.remove(program)
            if not self._is_closed:
                self._fill()
            self._given_back.notify_all()
