"""Death of the parent: on Linux the kernel kills a child as soon as its parent has ended, even one that is suspended or
inside a C function that never returns (PR_SET_PDEATHSIG). Elsewhere a child ends when its socket closes; for one that
becomes a program which does not know of the socket, a process beside it watches that.
"""

import ctypes
import os
import signal
import socket
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def end_with_parent(pid: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; exit at once if process `pid` has."""
    _set_death_signal(signal.SIGKILL)
    if sys.platform == "linux" and os.getppid() != pid:
        os._exit(1)


def end_with_socket(end: socket.socket) -> None:
    """Have this process killed when the other end of its socket closes, as it does with the parent, also after it has
    become another program. For a process with one thread; does nothing on Linux, where `end_with_parent` has done it.
    """
    if sys.platform != "linux":
        watch(end)


def watch(end: socket.socket) -> None:
    """Fork a process that waits for the other end of a socket to close, and then kills this one if it still runs."""
    watched = os.getpid()
    if os.fork():
        return
    try:
        while end.recv(1):
            pass
    finally:
        if os.getppid() == watched:
            os.kill(watched, signal.SIGKILL)
        os._exit(0)


def outlive_parent() -> None:
    """Revoke `end_with_parent`: this process ends by itself, once it has cleaned up."""
    _set_death_signal(0)


def _set_death_signal(number: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
