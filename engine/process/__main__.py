"""Entry point of a child program: `python -m engine.process MODULE SOCKET PARENT LIMITS WORDS…`.

Applies its limits, then calls `MODULE.main(socket, *words)`. PARENT is a process id.
"""

import importlib
import signal
import socket
import sys

from engine.process.limits import Limits, apply
from engine.process.parent_death import end_with_parent


def main() -> None:
    module, end, parent, limits, *words = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the whole group; the parent ends its children
    end_with_parent(int(parent))
    apply(Limits.parse(limits))
    with socket.socket(fileno=int(end)) as channel:
        importlib.import_module(module).main(channel, *words)


if __name__ == "__main__":
    main()
