"""Command line of the engine: `python -m engine generate --prompt "Once upon a time" --top-k 5`."""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl+C ends the process at once until a command begins

import errno
import io
import os
import sys
from importlib import import_module
from types import ModuleType
from typing import TextIO

from engine import private_files
from engine.commands.arguments import MEASURING, OTHERS
from engine.commands.table import printable
from engine.errors import EngineError
from engine.shutdown import Shutdown

ERROR, INTERRUPTED, NO_READER = 2, 130, 141
COMMANDS = {**dict.fromkeys(MEASURING, "bench"), **{name: name for name in OTHERS}}
"""Module of engine.commands for each subcommand; each module imports only what it needs."""

_shutdown = Shutdown()


def main(words: list[str] | None = None) -> int:
    """Run one command and return its exit status.

    0, 2 for an error reported on standard error, 130 after Ctrl+C, 141 when standard output is a closed pipe.
    """
    words = sys.argv[1:] if words is None else words
    _open_outputs()
    private_files.begin()
    try:
        _command(words).run(words)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        return _status(error)
    finally:
        private_files.end()
    return 0


def _command(words: list[str]) -> ModuleType:
    return import_module(f"engine.commands.{COMMANDS.get(words[0] if words else '', 'generate')}")


def _status(error: BaseException) -> int:
    """Report what ended a command and return the exit status. Raises an error that is a defect of this code again."""
    if isinstance(error, KeyboardInterrupt) or _shutdown.is_begun:
        # Libraries turn an interrupt into other errors: DuckDB into RuntimeError, compiled modules into ImportError.
        _end_outputs()
        return INTERRUPTED
    if isinstance(error, EngineError):
        print(printable(f"error: {error}", is_terminal=True), file=sys.stderr)
        return ERROR
    if isinstance(error, BrokenPipeError):
        # The reader has closed the pipe, as after `| head`.
        _write_no_more(sys.stdout)
        return NO_READER
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        _write_no_more(sys.stdout)
        print(f"error: the disk is full ({error.strerror})", file=sys.stderr)
        return ERROR
    raise error


def _open_outputs() -> None:
    """Replace closed outputs by the null device, and print what an output cannot encode as escapes such as \\xe9."""
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _end_outputs() -> None:
    """End the line on standard error and flush both outputs, whose readers Ctrl+C may have ended too."""
    for stream, text in ((sys.stdout, ""), (sys.stderr, "\n")):
        try:
            print(text, end="", file=stream, flush=True)
        except OSError:
            _write_no_more(stream)


def _write_no_more(stream: TextIO) -> None:
    """Redirect an output to the null device; otherwise Python reports the error again when it flushes on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def program() -> int:
    """Run the command of this process. Ctrl+C ends the command in order, and the process at once before and after."""
    _command(sys.argv[1:])  # imported before Ctrl+C raises: compiled modules would raise other errors, or go on
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return main()
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _shutdown.install(signal.SIGINT)
        status = main()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


if __name__ == "__main__":
    sys.exit(program())
