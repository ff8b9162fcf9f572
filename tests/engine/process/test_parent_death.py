"""Programs that do not know of their socket: they end with the parent, without the kernel's help, and leave nothing."""

import socket
import subprocess
import sys

import psutil

from tests.processes import has_ended
from tests.waiting import until

WATCHED = """
import os, socket, sys
from engine.process.parent_death import watch
watch(socket.socket(fileno=int(sys.argv[1])))
os.execvp("sleep", ["sleep", "600"])
"""
PARENT = f"""
import socket, subprocess, sys, threading
ours, theirs = socket.socketpair()
words = [sys.executable, "-c", {WATCHED!r}, str(theirs.fileno())]
child = subprocess.Popen(words, pass_fds=(theirs.fileno(),), stdout=subprocess.DEVNULL)
theirs.close()
print(child.pid, flush=True)
threading.Event().wait()
"""


def watcher_of(pid: int) -> int:
    """The process beside a program, once it runs."""
    program = psutil.Process(pid)
    until(lambda: program.name() == "sleep" and program.children())
    (watcher,) = program.children()
    return watcher.pid


def test_another_program_ends_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        watcher = watcher_of(pid)
        parent.kill()
    until(lambda: has_ended(pid) and has_ended(watcher))


def test_what_watches_a_program_that_has_ended_ends_when_the_socket_closes() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        words = [sys.executable, "-c", WATCHED, str(theirs.fileno())]
        with subprocess.Popen(words, pass_fds=(theirs.fileno(),)) as program:
            watcher = watcher_of(program.pid)
            program.kill()
        assert not has_ended(watcher)
    until(lambda: has_ended(watcher))
