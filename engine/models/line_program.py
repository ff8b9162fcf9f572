"""A program that answers lines of JSON: it may crash, be killed or be stopped, and this process goes on."""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from engine.errors import WorkerDied
from engine.llama.launch import environment_for, log_tail


class LineProgram:
    """`python -m module words…`, for one thread; stop() may be called from any other.

    does: what its process does, after "the process that", for the message when it ends too early.
    """

    def __init__(self, module: str, *words: str, does: str) -> None:
        self._does = does
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - the program writes to it as long as it lives
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment_for(),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    @property
    def is_alive(self) -> bool:
        """False once it has ended."""
        return self._process.poll() is None

    def ask(self, question: Mapping[str, Any], about: str) -> dict[str, Any]:
        """The answer to a line. about: file that a failure names first. Raises WorkerDied."""
        line = b""
        with contextlib.suppress(OSError, ValueError):  # it ended
            self._input.write(json.dumps(question).encode() + b"\n")
            self._input.flush()
            line = self._output.readline()
        if not line.endswith(b"\n"):
            raise self._death(about)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """End the program, and with it a wait for an answer."""
        self._process.kill()

    def close(self) -> None:
        """End the program and let go of it; safe to call twice."""
        self.stop()
        self._process.wait()
        for stream in (self._input, self._output, self._log):
            with contextlib.suppress(OSError):  # what was still to be written has nobody to read it
                stream.close()

    def _death(self, about: str) -> WorkerDied:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        self.stop()
        status = self._process.wait()
        return WorkerDied(
            f"{about}: the process that {self._does} ended with status {status}: try again, and with the same outcome "
            f"another file{log_tail(self._log)}"
        )
