"""The process in which llama.cpp quantises; it may crash, be killed or be stopped, and this one goes on."""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.errors import WorkerDied
from engine.llama.launch import environment_for, log_tail
from engine.models.imatrix import Importance

_MODULE = "engine.llama.quantise"


class QuantiseProgram:
    """`python -m engine.llama.quantise`, for one thread; stop() may be called from any other."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - the program writes to it as long as it lives
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment_for(),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def ask(self, source: Path, file_type: int, **options: Any) -> dict[str, Any]:
        """The answer to a job: options as in `engine.llama.quantise.Job`. Raises WorkerDied."""
        job = {"source": str(source), "file_type": file_type, **options}
        line = b""
        with contextlib.suppress(OSError, ValueError):  # it ended
            self._input.write(json.dumps(job).encode() + b"\n")
            self._input.flush()
            line = self._output.readline()
        if not line.endswith(b"\n"):
            raise self._death(source)
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

    def _death(self, source: Path) -> WorkerDied:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        self.stop()
        status = self._process.wait()
        return WorkerDied(
            f"{source}: the process that quantised it ended with status {status}, so nothing was "
            f"written: try again, and with the same outcome another file{log_tail(self._log)}"
        )


def told_of(imatrix: Path | None, importances: Sequence[Importance]) -> dict[str, Any]:
    """The options by which the program reads an importance matrix."""
    return {"imatrix": str(imatrix), "importances": list(importances)} if imatrix else {}
