"""Entry point of a child program: `python -m engine.process MODULE SOCKET LIFELINE LIMITS WORDS…`.

Applies its limits, then calls `MODULE.main(socket, *words)`. On Linux the kernel terminates it as soon as its parent
ends, even inside a C function that never returns: the parent holds the other end of the pipe LIFELINE.
"""

import fcntl
import importlib
import os
import select
import signal
import socket
import sys

from engine.process.limits import Limits, apply


def main() -> None:
    module, end, lifeline, limits, *words = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the whole group; the parent ends its children
    _end_with_parent(int(lifeline))
    apply(Limits.parse(limits))
    with socket.socket(fileno=int(end)) as channel:
        importlib.import_module(module).main(channel, *words)


def _end_with_parent(lifeline: int) -> None:
    """Have the kernel send SIGIO, which terminates a process by default, when the pipe's other end is closed."""
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
        watched = select.poll()
        watched.register(lifeline, 0)
        if watched.poll(0):  # the parent ended before the pipe was watched
            os._exit(1)


if __name__ == "__main__":
    main()
