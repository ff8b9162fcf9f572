"""The workbench under test: the real `streamlit run app.py`, which is killed, stopped, filled up and started again."""

import ctypes
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import psutil

from tests.e2e.conftest import Server
from tests.faults.failure import MOST_S, Failure
from tests.faults.page import Page

STARTS_WITHIN_S = 60.0
ENDS_WITHIN_S = 5.0
TAB_TTL = "STREAMLIT_SERVER_DISCONNECTED_SESSION_TTL", "2"
"""Closed tabs are kept for seconds here and not for two minutes, so that what they hold is not taken for a leak."""

SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>


def adopt_orphans() -> None:
    """Make this process the parent of every descendant that loses its own: no orphan can hide. Linux only."""
    if ctypes.CDLL(None, use_errno=True).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def end_in_order() -> None:
    """Ended from outside, this program still gives back its disk and ends what it started; a second signal waits."""

    def end(number: int, _: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(1)

    signal.signal(signal.SIGTERM, end)


class App:
    """One home folder and the server on it; `start` after a kill opens the same history again."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.others: set[int] = {child.pid for child in psutil.Process().children()}
        """Children of this program that are not of the app: a browser, a second workbench."""
        self.server: Server | None = None

    # its life

    def start(self) -> None:
        """Start the server and return once its model is loaded."""
        os.environ.update([TAB_TTL])
        self.server = Server(self.home)
        self.others.discard(self.server.process.pid)
        try:
            self.server.wait(STARTS_WITHIN_S)
        except AssertionError as error:
            raise Failure(f"the app did not start: {str(error)[-500:]}") from error
        self.until_loaded()

    def until_loaded(self) -> None:
        """Return once a model is loaded and can be run."""
        with Page(self.url, most_s=STARTS_WITHIN_S) as page:
            until(lambda: _can_run(page), "the model was not loaded", STARTS_WITHIN_S)

    def kill(self) -> None:
        """kill -9; its children must end of themselves."""
        process = self._running.process
        process.kill()
        process.wait()
        self.server = None
        self.has_no_orphans()

    def end(self, number: signal.Signals) -> None:
        """End it as a person or the system does; raises Failure where that takes longer than it may."""
        process = self._running.process
        process.send_signal(number)
        try:
            process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"the app had not ended {ENDS_WITHIN_S:g} s after {number.name}") from None
        self.server = None
        self.has_no_orphans()

    def close(self) -> None:
        """End all of it by force, whatever state it is in."""
        if self.server is not None:
            children = self.children()
            self.server.process.kill()
            for child in children:
                child.kill()
            self.server.process.wait()
            self.server = None
        for one in self._orphans():
            one.kill()
            one.wait()

    # what can be asked of it

    @property
    def url(self) -> str:
        """Where it serves."""
        return self._running.url

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return "127.0.0.1", self._running.port

    @property
    def process(self) -> psutil.Process:
        """The server's own process."""
        return psutil.Process(self._running.process.pid)

    @property
    def _running(self) -> Server:
        if self.server is None:
            raise Failure("the app does not run")
        if self.server.process.poll() is not None:
            raise Failure(f"the app ended with {self.server.process.returncode}: {self.log_end()}")
        return self.server

    def log_end(self) -> str:
        """The last words of its log."""
        return (self.home / "server.log").read_text(errors="replace")[-800:]

    def children(self) -> list[psutil.Process]:
        """Every process under the app."""
        return self.process.children(recursive=True)

    def workers(self) -> list[psutil.Process]:
        """The pool's worker processes that are alive."""
        return [child for child in self.children() if "engine.pool.worker" in _words(child)]

    def is_healthy(self) -> None:
        """Raise Failure where the server does not answer in time."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=MOST_S)
        try:
            connection.request("GET", "/_stcore/health")
            status = connection.getresponse().status
        except OSError as error:
            raise Failure(f"health was not answered: {error!r}") from error
        finally:
            connection.close()
        if status != 200:
            raise Failure(f"health answered {status}")

    def has_no_orphans(self) -> None:
        """Raise Failure where a process has lost its parent and lives on; one that is just ending has some seconds."""
        until(lambda: not self._orphans(), lambda: f"orphans: {_described(self._orphans())}")

    def _orphans(self) -> list[psutil.Process]:
        server = self.server.process.pid if self.server else None
        found = [child for child in psutil.Process().children() if child.pid not in {*self.others, server}]
        return [child for child in found if not _is_reaped(child)]


def until(is_so: Callable[[], object], what: str | Callable[[], str], within_s: float = MOST_S) -> None:
    """Return once it is so; raise Failure with those words where it is not so in time."""
    end = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > end:
            raise Failure(f"{what if isinstance(what, str) else what()} after {within_s:g} s")
        time.sleep(0.05)


def private_bytes(process: psutil.Process) -> int:
    """Memory that a process alone has written to, in bytes: what grows where something leaks."""
    for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) * 1024
    return 0


def _is_reaped(child: psutil.Process) -> bool:
    """True for one that has ended; it is then waited for, as its own parent cannot any more."""
    try:
        if child.status() != psutil.STATUS_ZOMBIE:
            return False
        os.waitpid(child.pid, os.WNOHANG)
    except (psutil.NoSuchProcess, ChildProcessError):
        pass
    return True


def _can_run(page: Page) -> bool:
    page.rerun()
    button = page.find("do_run") or page.find("do_stop")
    return button is not None and not button.disabled


def _described(processes: list[psutil.Process]) -> str:
    return "; ".join(f"{one.pid} {_words(one)[-120:]}" for one in processes)


def _words(process: psutil.Process) -> str:
    """Its command line, "" for one that has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
