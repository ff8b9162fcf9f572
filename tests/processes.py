"""Child processes that tests look for."""

import secrets
import socket
from contextlib import suppress

import psutil


def children_with(words: str, parent: psutil.Process | None = None) -> list[psutil.Process]:
    """Return the processes below `parent`, by default this one, whose command line contains `words`, oldest first.

    A process that ends while it is looked at is left out; a parent that has ended has none.
    """
    found = []
    try:
        below = (parent or psutil.Process()).children(recursive=True)
    except psutil.NoSuchProcess:
        below = []
    for child in below:
        try:
            if words in " ".join(child.cmdline()):
                found.append((child.create_time(), child.pid, child))
        except psutil.NoSuchProcess:  # a ZombieProcess is one too
            continue
    return [child for _, _, child in sorted(found, key=lambda one: one[:2])]


def has_ended(pid: int) -> bool:
    """Return whether a process runs no more; it may end while it is looked at, and wait for its parent's look."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def children() -> set[psutil.Process]:
    """Return the child processes of this one."""
    return set(psutil.Process().children())


def free_port() -> int:
    """Return a port of this machine on which nothing listens.

    It is none of those from which the system chooses where a program asks for any, so that no other test gets it before
    a server listens on it.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
