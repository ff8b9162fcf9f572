"""Death of the parent: on Linux the kernel kills a child as soon as its parent has ended, even one that is suspended or
inside a C function that never returns (PR_SET_PDEATHSIG). Elsewhere a child ends when its socket closes.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def end_with_parent(pid: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; exit at once if process `pid` has."""
    _set_death_signal(signal.SIGKILL)
    if sys.platform == "linux" and os.getppid() != pid:
        os._exit(1)


def outlive_parent() -> None:
    """Revoke `end_with_parent`: this process ends by itself, once it has cleaned up."""
    _set_death_signal(0)


def _set_death_signal(number: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
