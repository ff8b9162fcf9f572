"""The command line: `python -m engine generate --prompt "Once upon a time" --top-k 5`."""

import errno
import os
import signal
import sys
from importlib import import_module

from engine import private_files
from engine.commands.arguments import MEASURING, OTHERS
from engine.errors import EngineError
from engine.shutdown import Shutdown

ERROR, INTERRUPTED, NO_READER = 2, 130, 141
COMMANDS = {**dict.fromkeys(MEASURING, "bench"), **{name: name for name in OTHERS}}
"""Which module of engine.commands a first word calls; each brings only what it needs."""


def main(words: list[str] | None = None) -> int:
    """Run one command; gives the exit status: 0, 2 for an error told on standard error, 130 after Ctrl+C."""
    words = sys.argv[1:] if words is None else words
    private_files.begin()
    try:
        command = COMMANDS.get(words[0] if words else "", "generate")
        import_module(f"engine.commands.{command}").run(words)
        sys.stdout.flush()
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return ERROR
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Nobody reads any more, as after `| head`.
        _write_no_more()
        return NO_READER
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _write_no_more()
        print(f"error: the disk has no more room for what is written ({error.strerror})", file=sys.stderr)
        return ERROR
    finally:
        private_files.end()
    return 0


def _write_no_more() -> None:
    """Let go of standard output, or Python would complain once more when it flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    Shutdown().install(signal.SIGINT)
    sys.exit(main())
