"""Command line of the engine: `python -m engine generate --prompt "Once upon a time" --top-k 5`."""

import errno
import os
import signal
import sys
from importlib import import_module

from engine import private_files
from engine.commands.arguments import MEASURING, OTHERS
from engine.commands.table import printable
from engine.errors import EngineError
from engine.shutdown import Shutdown

ERROR, INTERRUPTED, NO_READER = 2, 130, 141
COMMANDS = {**dict.fromkeys(MEASURING, "bench"), **{name: name for name in OTHERS}}
"""Module of engine.commands for each subcommand; each module imports only what it needs."""


def main(words: list[str] | None = None) -> int:
    """Run one command and return its exit status.

    0, 2 for an error reported on standard error, 130 after Ctrl+C, 141 when standard output is a closed pipe.
    """
    words = sys.argv[1:] if words is None else words
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    private_files.begin()
    try:
        command = COMMANDS.get(words[0] if words else "", "generate")
        import_module(f"engine.commands.{command}").run(words)
        sys.stdout.flush()
    except EngineError as error:
        print(printable(f"error: {error}", is_terminal=True), file=sys.stderr)
        return ERROR
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe, as after `| head`.
        _write_no_more()
        return NO_READER
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _write_no_more()
        print(f"error: the disk is full ({error.strerror})", file=sys.stderr)
        return ERROR
    finally:
        private_files.end()
    return 0


def _write_no_more() -> None:
    """Redirect standard output to the null device; otherwise Python reports the error again when it flushes on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    Shutdown().install(signal.SIGINT)
    sys.exit(main())
