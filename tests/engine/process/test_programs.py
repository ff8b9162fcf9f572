"""Child programs: answers, limits, and every way to end."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError, EngineError, LimitExceeded, ProgramFailed, WorkerDied
from engine.process.child import Child, log_tail
from engine.process.limits import Limits
from engine.process.program import Program, Service
from tests.processes import has_ended
from tests.waiting import until

pytestmark = pytest.mark.slow

MODULE = "tests.engine.process.programs"
WITHIN_S = 60.0
GIB = 1 << 30
LIMITS = Limits(memory_bytes=GIB, cpu_s=2, file_bytes=1 << 20)
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux holds this limit")


@pytest.fixture
def program() -> Iterator[Program]:
    opened = Program(MODULE, "some", "words", does="answers", limits=LIMITS)
    yield opened
    opened.close()


@pytest.fixture
def service() -> Iterator[Service]:
    opened = Service(MODULE, does="answers", limits=LIMITS, has_spare=True)
    yield opened
    opened.close()


def test_requests_are_answered_in_turn(program: Program) -> None:
    assert program.ask({"do": "words"}) == ["some", "words"]
    assert [program.ask({"do": "add", "numbers": [1, n]}) for n in range(50)] == list(range(1, 51))


def test_many_threads_get_their_own_answers(program: Program) -> None:
    answers: dict[int, int] = {}

    def ask(n: int) -> None:
        answers[n] = program.ask({"do": "add", "numbers": [n, n]})

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    assert answers == {n: 2 * n for n in range(20)}


def test_errors_travel_by_class_and_text(program: Program) -> None:
    with pytest.raises(ConfigError, match="this is refused"):
        program.ask({"do": "refuse", "text": "this"})
    assert program.ask({"do": "add", "numbers": [2]}) == 2


@pytest.mark.parametrize("doing", [{"do": "sleep", "seconds": 1e3}, {"do": "burn"}, {"do": "stuck"}])
def test_the_deadline_ends_whatever_it_does(doing: dict[str, object]) -> None:
    program = Program(MODULE, does="answers")
    pid = program.ask({"do": "pid"})
    with pytest.raises(LimitExceeded, match="a file: the process that answers took longer than 0.3 s"):
        program.ask(doing, 0.3, "a file")
    assert not psutil.pid_exists(pid)
    with pytest.raises(WorkerDied):
        program.ask({"do": "pid"}, 1.0)
    program.close()


def test_one_that_stands_still_is_ended_at_the_deadline_even_while_it_reads(program: Program) -> None:
    pid = program.ask({"do": "pid"})
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(LimitExceeded, match="took longer"):
        program.ask({"do": "add", "numbers": [0] * 2_000_000}, 0.5)
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("doing", ["sleep", "burn", "stuck", "start"])
def test_one_that_is_suspended_at_work_is_ended_long_before_the_deadline(doing: str) -> None:
    program = Program(MODULE, does="answers")
    if doing == "start":
        os.kill(program.pid, signal.SIGSTOP)
    else:
        program.ask({"do": "pid"})
        threading.Timer(0.3, os.kill, (program.pid, signal.SIGSTOP)).start()
    with pytest.raises(LimitExceeded, match=r"a file: the process that answers was suspended \(SIGSTOP\)"):
        program.ask({"do": doing, "seconds": 1e3}, 1e3, "a file")
    assert not program.is_alive
    program.close()


def test_one_that_is_suspended_briefly_goes_on(program: Program) -> None:
    pid = program.ask({"do": "pid"})
    for at_s, number in ((0.1, signal.SIGSTOP), (1.5, signal.SIGCONT)):
        threading.Timer(at_s, os.kill, (pid, number)).start()
    assert program.ask({"do": "sleep", "seconds": 1.0}, WITHIN_S) is None
    assert program.is_alive


def asked_at_once(
    program: Program, requests: list[tuple[dict[str, object], float]]
) -> tuple[list[threading.Thread], list[EngineError]]:
    """Ask requests, each with its deadline, from as many threads; return these, and the errors that come."""
    errors: list[EngineError] = []

    def ask(request: dict[str, object], deadline_s: float) -> None:
        try:
            program.ask(request, deadline_s)
        except EngineError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=one) for one in requests]
    for thread in threads:
        thread.start()
    return threads, errors


def test_a_second_request_does_not_wait_for_ever(program: Program) -> None:
    program.ask({"do": "pid"})

    def sleep() -> None:
        with pytest.raises(WorkerDied):
            program.ask({"do": "sleep", "seconds": 1e3})

    busy = threading.Thread(target=sleep)
    busy.start()
    until(program._lock.locked)
    with pytest.raises(LimitExceeded, match=r"was busy for 0.2 s"):
        program.ask({"do": "pid"}, 0.2)
    program.stop()
    busy.join(WITHIN_S)
    assert not busy.is_alive()


def test_the_time_that_a_request_waits_is_not_taken_from_its_own(program: Program) -> None:
    pid = program.ask({"do": "pid"})
    threads, errors = asked_at_once(program, [({"do": "sleep", "seconds": 1.5}, 4.0)] * 3)
    for thread in threads:
        thread.join(WITHIN_S)
    assert errors == []
    assert program.ask({"do": "pid"}) == pid


@pytest.mark.parametrize("doing", [{"do": "stuck"}, {"do": "sleep", "seconds": 1e3}])
def test_a_request_that_waits_is_not_blamed_for_the_one_before_it(doing: dict[str, object]) -> None:
    program = Program(MODULE, does="answers")
    program.ask({"do": "pid"})
    first, of_first = asked_at_once(program, [(doing, 2.0)])
    until(program._lock.locked)
    others, of_others = asked_at_once(program, [({"do": "pid"}, WITHIN_S)] * 3)
    for thread in first + others:
        thread.join(WITHIN_S)
    assert [(type(error), "took longer" in str(error)) for error in of_first] == [(LimitExceeded, True)]
    assert [isinstance(error, LimitExceeded) and error.is_busy for error in of_others] == [True] * 3
    program.close()


@on_linux
@pytest.mark.parametrize("doing", [{"do": "burn"}, {"do": "stuck"}])
def test_processor_time_is_limited_for_each_request(program: Program, doing: dict[str, object]) -> None:
    for _ in range(3):
        program.ask({"do": "add", "numbers": list(range(10_000))})
    with pytest.raises(WorkerDied, match=r"the process that .* used up its processor time \(SIGXCPU\)$"):
        program.ask(doing, WITHIN_S)


@on_linux
def test_memory_is_limited_and_the_program_goes_on(program: Program) -> None:
    with pytest.raises(LimitExceeded, match=r"more memory than the limit of 1.0 GiB"):
        program.ask({"do": "allocate", "size": 2 * GIB})
    assert program.ask({"do": "allocate", "size": 1 << 20}) == 1 << 20


def test_deep_recursion_is_an_error_and_the_program_goes_on(program: Program) -> None:
    with pytest.raises(LimitExceeded, match="nested too deeply"):
        program.ask({"do": "nest"})
    assert program.ask({"do": "add", "numbers": [2]}) == 2


def test_text_that_is_not_utf8_is_an_error_and_the_program_goes_on(program: Program) -> None:
    pid = program.ask({"do": "pid"})
    assert program.ask({"do": "say", "text": "\\u00e9"}) == "é"
    with pytest.raises(ConfigError, match="half of a surrogate pair"):
        program.ask({"do": "say", "text": "a\\ud800"})
    with pytest.raises(ConfigError, match=r"a\\udfff"):
        program.ask({"do": "complain", "text": "a\\udfff"})
    assert program.ask({"do": "pid"}) == pid


def test_files_are_limited(program: Program, tmp_path: Path) -> None:
    assert program.ask({"do": "write", "path": str(tmp_path / "small"), "size": 1000}) == 1000
    with pytest.raises(WorkerDied):
        program.ask({"do": "write", "path": str(tmp_path / "large"), "size": 2 << 20})
    assert (tmp_path / "large").stat().st_size <= 1 << 20


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGKILL])
def test_a_death_is_reported_with_its_signal(program: Program, number: int) -> None:
    with pytest.raises(WorkerDied, match=signal.Signals(number).name):
        program.ask({"do": "die", "signal": number})
    assert not program.is_alive


def test_a_program_that_cannot_start_says_why() -> None:
    program = Program("tests.engine.process.no_such_module", does="answers")
    with pytest.raises(WorkerDied, match=r"(?s)exited with status 1.*ModuleNotFoundError"):
        program.ask(None, WITHIN_S)
    program.close()


@given(st.binary(max_size=200))
def test_a_log_says_its_words_without_control_characters(written: bytes) -> None:
    with tempfile.TemporaryFile() as log:
        log.write(b"\x1b[31mthe reason\x07\n" + written)
        log.flush()
        tail = log_tail(log)
    assert "[31mthe reason\n" in tail + "\n"
    assert not any(unicodedata.category(mark) == "Cc" for mark in tail if mark not in "\n\t")


def test_a_service_answers_after_every_death(service: Service) -> None:
    seen = set()
    for doing in ({"do": "stuck"}, {"do": "die", "signal": signal.SIGSEGV}, {"do": "sleep", "seconds": 99.0}) * 2:
        seen.add(service.ask({"do": "pid"}, WITHIN_S))
        with pytest.raises(LimitExceeded):
            service.ask(doing, 0.5)
    assert service.ask({"do": "pid"}, WITHIN_S) not in seen
    assert len(seen) == 6


@on_linux
@pytest.mark.parametrize("seed", range(3))
def test_a_service_gives_no_request_the_memory_of_an_earlier_one(service: Service, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(4):
        size = draw.choice([GIB, 2 * GIB, 700 << 20, 100 << 20])
        with contextlib.suppress(LimitExceeded):
            service.ask({"do": draw.choice(["hold", "allocate"]), "size": size}, WITHIN_S)
        assert service.ask({"do": "allocate", "size": 500 << 20}, WITHIN_S) == 500 << 20


@on_linux
def test_a_service_keeps_a_program_that_needs_little(service: Service) -> None:
    pids = {service.ask({"do": "hold", "size": 1 << 20}, WITHIN_S) for _ in range(5)}
    assert len(pids) == 1


@on_linux
def test_a_task_of_several_requests_may_hold_memory_until_its_end(service: Service) -> None:
    pid = service.ask({"do": "begin"}, WITHIN_S)
    assert [service.ask({"do": "hold", "size": 400 << 20}, WITHIN_S) for _ in range(2)] == [pid, pid]
    assert service.ask({"do": "end"}, WITHIN_S) == pid
    assert service.ask({"do": "pid"}, WITHIN_S) != pid


def test_a_service_answers_though_all_of_its_programs_stand_still(service: Service) -> None:
    service.ask({"do": "pid"}, WITHIN_S)
    pids = [program.pid for program in service._programs]
    assert len(pids) == 2
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    assert service.ask({"do": "pid"}, WITHIN_S) not in pids
    assert not any(map(psutil.pid_exists, pids))


def test_a_service_replaces_one_that_stands_still(service: Service) -> None:
    pid = service.ask({"do": "pid"}, WITHIN_S)
    os.kill(pid, signal.SIGSTOP)
    assert service.ask({"do": "pid"}, WITHIN_S) != pid
    assert not psutil.pid_exists(pid)


def test_a_claimed_program_answers_all_of_its_requests(service: Service) -> None:
    with service.claimed(WITHIN_S) as program:
        assert {program.ask({"do": "pid"}, WITHIN_S) for _ in range(3)} == {program.pid}
        assert service.ask({"do": "pid"}, WITHIN_S) != program.pid
        with pytest.raises(WorkerDied):
            program.ask({"do": "die", "signal": signal.SIGSEGV}, WITHIN_S)
        with pytest.raises(WorkerDied):
            program.ask({"do": "pid"}, WITHIN_S)
    assert service.ask({"do": "pid"}, WITHIN_S) != program.pid


def test_a_closed_service_says_so_and_leaves_no_process() -> None:
    service = Service(MODULE, does="answers", has_spare=True)
    pids = [program.pid for program in service._programs]
    assert len(pids) == 2
    service.close()
    service.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with pytest.raises(WorkerDied, match="has been closed"):
        service.ask({"do": "pid"}, 1.0)


def test_closing_while_a_request_waits_ends_the_wait(service: Service) -> None:
    service.ask({"do": "pid"}, WITHIN_S)
    threading.Timer(0.3, service.close).start()
    with pytest.raises(EngineError):
        service.ask({"do": "sleep", "seconds": 1e3}, WITHIN_S)


@on_linux
@pytest.mark.parametrize("doing", ["nothing", "sleep", "stuck", "suspended"])
def test_a_child_ends_with_its_parent_whatever_it_does(doing: str) -> None:
    parent_program = f"""
import sys, threading
from engine.process.program import Program
program = Program({MODULE!r}, does="answers")
print(program.ask({{"do": "pid"}}), flush=True)
request = {{"do": {doing!r}, "seconds": 1e3}}
program.ask(request) if {doing!r} in ("sleep", "stuck") else threading.Event().wait()
"""
    with subprocess.Popen([sys.executable, "-c", parent_program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        if doing == "stuck":
            until(lambda: child.cpu_times().user > 0.3)
        elif doing == "suspended":
            child.suspend()
        parent.kill()
    until(lambda: has_ended(child.pid))


@on_linux
def test_a_child_outlives_the_thread_that_asked_for_it() -> None:
    programs: list[Program] = []
    thread = threading.Thread(target=lambda: programs.append(Program(MODULE, does="answers")))
    thread.start()
    thread.join(WITHIN_S)
    assert programs[0].ask({"do": "add", "numbers": [1, 2]}) == 3
    programs[0].close()


@on_linux
def test_a_fork_starts_children_of_its_own() -> None:
    first = Program(MODULE, does="answers")
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            second = Program(MODULE, does="answers")
            os._exit(0 if second.ask({"do": "add", "numbers": [1, 2]}, WITHIN_S) == 3 else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert first.ask({"do": "add", "numbers": [2]}, WITHIN_S) == 2
    first.close()


def test_children_keep_no_descriptors_of_each_other() -> None:
    first, second = Program(MODULE, does="answers"), Program(MODULE, does="answers")
    assert len(first.ask({"do": "fds"})) == len(second.ask({"do": "fds"}))
    first.close()
    second.close()


def test_a_long_log_is_cut_to_its_tail_and_goes_on() -> None:
    program = Program(MODULE, does="answers")
    child = program._child
    for text in (*["a line\n" * 50_000] * 4, "the last line\n"):
        program.ask({"do": "log", "text": text})
    child.shorten_log()
    assert child._log.seek(0, os.SEEK_END) < 10_000
    program.ask({"do": "log", "text": "one more\n"})
    assert child.log_tail().endswith("a line\nthe last line\none more")
    child.shorten_log()  # short as it is
    program.close()
    assert child.log_tail().endswith("one more")


def test_a_child_that_does_not_hang_up_is_killed() -> None:
    child = Child(MODULE)
    os.kill(child.pid, signal.SIGSTOP)
    child.close(patience_s=0.2)
    child.close()
    assert not child.is_alive
    assert child.ending() == "was killed (SIGKILL)"


def test_a_child_that_cannot_be_started_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    not_executable = tmp_path / "python"
    not_executable.write_bytes(b"")
    for interpreter in (str(tmp_path / "gone"), str(not_executable), str(tmp_path)):
        monkeypatch.setattr(sys, "executable", interpreter)
        with pytest.raises(ProgramFailed, match="a child process cannot be started"):
            Program(MODULE, does="answers")
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(ProgramFailed, match="a child process cannot be started"):
        Program(MODULE, does="answers")


CLOSED = f"""
import os, sys
from engine.process.program import Program

for number in map(int, sys.argv[2]):
    os.close(number)
program = Program({MODULE!r}, does="answers")
answer = program.ask({{"do": "add", "numbers": [2, 3]}}, 60)
program.close()
with open(sys.argv[1], "w") as out:
    out.write(str(answer))
"""


@pytest.mark.parametrize("closed", ["0", "1", "2", "01", "02", "12", "012"])
def test_closed_standard_streams_do_not_matter(tmp_path: Path, closed: str) -> None:
    out = tmp_path / "answer"
    subprocess.run([sys.executable, "-c", CLOSED, out, closed], check=False, timeout=WITHIN_S)
    assert out.read_text() == "5"
