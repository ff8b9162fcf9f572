"""Bounded shutdown: what hangs is left behind, and a second signal ends the process immediately."""

import signal
import subprocess
import sys
import threading

import pytest

from engine.shutdown import close_all
from tests.waiting import until

HANGS = """
import signal, sys, threading, time
from engine import shutdown

shutdown.WITHIN_S = float(sys.argv[1])
kinds = {
    "closing": threading.Event().wait,
    "leaving": lambda: None,
    "nothing to close": None,
}
shutdown.Shutdown(kinds[sys.argv[2]]).install(signal.SIGINT, signal.SIGTERM)
threading.Thread(target=threading.Event().wait).start()  # not a daemon: the interpreter waits for it at its end
print("ready", flush=True)
while True:
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(130)
"""


def started(within_s: float, kind: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HANGS, str(within_s), kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("kind", ["closing", "nothing to close"])
def test_what_hangs_is_ended_and_says_where(kind: str) -> None:
    with started(0.5, kind) as process:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Timeout" in errors and "most recent call first" in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_once_all_is_closed_no_thread_holds_the_end_up(number: signal.Signals) -> None:
    with started(60, "leaving") as process:
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (128 + number, -number)
    assert "Timeout" not in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_it_at_once(number: signal.Signals) -> None:
    with started(600, "closing") as process:
        process.send_signal(signal.SIGINT)

        def is_gone() -> bool:
            process.send_signal(number)
            return process.poll() is not None

        until(is_gone)
    assert process.returncode == 128 + number


def test_it_is_bounded_with_standard_error_closed_too() -> None:
    command = f"exec {sys.executable} -c '{HANGS}' 0.5 closing 2>&-"
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 1


def test_those_that_hang_are_named() -> None:
    over = threading.Event()

    def hangs() -> None:
        over.wait(60)

    done: list[int] = []
    late = close_all([hangs, lambda: done.append(1), hangs], 0.2)
    over.set()
    assert [name.rpartition(".")[2] for name in late] == ["hangs", "hangs"]
    assert done == [1]
