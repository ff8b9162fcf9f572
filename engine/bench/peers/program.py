"""One program beside this one that answers a JSON line with a JSON line, each within a time limit."""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any

from engine import errors
from engine.bench.measuring.clients import Deadline
from engine.errors import BenchTimeout, EngineError, WorkerDied
from engine.llama.launch import environment_for, log_tail

_CHUNK = 1 << 16


class Program:
    """`python -m module`, with the llama.cpp libraries of the folder `build` if one is named.

    close() may be called from any thread and ends a wait for an answer. started_at: monotonic second of the start.
    """

    def __init__(self, module: str, build: str = "") -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - the program writes to it as long as it lives
        self._name = module
        self._received, self._last_words = b"", ""
        self._lock = threading.RLock()
        self.started_at = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment_for(build),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def ask(self, question: Mapping[str, Any], deadline: Deadline) -> dict[str, Any]:
        """Send a line and wait for its answer.

        Raises BenchTimeout (the program is then ended), WorkerDied, or the EngineError that the program reports.
        """
        with self._lock:
            try:
                self._input.write(json.dumps(question).encode() + b"\n")
                self._input.flush()
            except (OSError, ValueError) as error:
                raise self._death() from error
            answer: dict[str, Any] = json.loads(self._line(deadline))
        if "error" in answer:
            raise getattr(errors, answer["error"], EngineError)(answer["text"])
        return answer

    def _line(self, deadline: Deadline) -> bytes:
        output = self._output.fileno()
        while b"\n" not in self._received:
            if not select.select([output], [], [], deadline.left_s)[0]:
                self.close()
                raise BenchTimeout(
                    f"{self._name} gave no answer within {deadline.timeout_s:g} s: it hangs or is too slow for what is "
                    "asked; ask for less or allow more time"
                )
            chunk = os.read(output, _CHUNK)
            if not chunk:
                raise self._death()
            self._received += chunk
        line, _newline, self._received = self._received.partition(b"\n")
        return line

    def _death(self) -> WorkerDied:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        self.close()
        status = self._process.returncode
        return WorkerDied(f"{self._name} ended with status {status}: run this again{self._last_words}")

    def close(self) -> None:
        """End the program; safe to call twice, and where it hangs."""
        self._process.kill()
        self._process.wait()
        with self._lock:
            if self._log.closed:
                return
            self._last_words = log_tail(self._log)
            for stream in (self._input, self._output, self._log):
                with contextlib.suppress(OSError):  # what was still to be written has nobody to read it
                    stream.close()
