"""Child program that becomes a server of others: llama-server, without the variables of the environment that would set
its parameters."""

import os
import socket

from engine.process.parent_death import end_with_socket

_SETS_PARAMETERS = "LLAMA_ARG_"


def main(end: socket.socket, cores: str, *command: str) -> None:
    """Run `command` in place of this process, on `cores`, numbers with commas between them, "" for all.

    It has a session of its own, as Ctrl+C is for the workbench, which ends its children.
    """
    os.setsid()
    end_with_socket(end)
    if cores:
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_SETS_PARAMETERS)}
    os.execve(command[0], command, environment)
