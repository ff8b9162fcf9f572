"""Tasks: state, progress, time left, failure and stop reported in one way; and only one task at a time."""

import gc
import logging
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

import pytest

from engine import tasks
from engine.errors import ConfigError, EngineError, JobTimeout, ModelError
from engine.tasks import Stopped, Task, TaskRunner
from tests.scripted_task import ScriptedTask
from tests.waiting import Clock, until

WITHIN_S = 60.0

T = TypeVar("T")


def fails(error: Exception) -> Callable[[Task[Any]], Any]:
    def work(_task: Task[Any]) -> Any:
        raise error

    return work


def ended(task: Task[T]) -> Task[T]:
    task.start()
    assert task.wait(WITHIN_S)
    return task


# States


def test_it_waits_runs_and_gives_its_result() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(task: Task[str]) -> str:
        task.update(0.5, "the first half")
        begun.set()
        assert go_on.wait(WITHIN_S)
        return "all of it"

    task = Task("Writing", work)
    assert (task.state, task.is_running, task.share, task.doing, task.left_s) == ("waiting", True, 0.0, "", None)
    task.start()
    assert begun.wait(WITHIN_S)
    assert (task.state, task.share, task.doing) == ("running", 0.5, "the first half")
    task.waits_for = "A benchmark"
    assert task.state == "waiting"
    with pytest.raises(JobTimeout, match="Writing did not finish within 0 s; it continues"):
        task.result(0)
    go_on.set()
    assert task.result(WITHIN_S) == "all of it"
    assert (task.state, task.is_running, task.share, task.left_s, task.error) == ("done", False, 1.0, 0.0, None)


def test_it_is_done_once() -> None:
    task = ended(Task("Writing", lambda _task: 1))
    with pytest.raises(ConfigError, match="Writing has already been started"):
        task.run()
    assert task.result() == 1


def test_a_failure_is_its_error() -> None:
    task = ended(Task("Writing", fails(ModelError("the disk is full"))))
    assert (task.state, str(task.error)) == ("failed", "the disk is full")
    with pytest.raises(ModelError, match="the disk is full"):
        task.result()


@pytest.mark.parametrize("defect", [IndexError("list index out of range"), MemoryError(), OSError("gone")])
def test_a_defect_is_logged_and_said_in_words(defect: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "engine.tasks"):
        task = ended(Task("Writing", fails(defect)))
    assert type(task.error) is EngineError
    assert str(task.error) == f"Writing failed because of a defect in this program: {defect!r}"
    assert task.state == "failed" and caplog.records[-1].exc_info is not None


def test_what_the_work_needed_is_let_go_of_at_the_end() -> None:
    class Large:
        pass

    large = Large()
    kept = weakref.ref(large)

    def work(_task: Task[None], _large: Large = large) -> None:
        pass

    task = ended(Task("Writing", work))
    del large, work
    gc.collect()
    assert kept() is None and task.state == "done"


# Stopping


def test_stop_ends_it_where_it_next_tells_its_progress() -> None:
    undone = list[str]()

    def work(task: Task[None]) -> None:
        try:
            while True:
                task.update(0.1)
        finally:
            undone.append("what was begun")

    task = Task("Writing", work).start()
    task.stop()
    assert task.is_stopped and task.wait(WITHIN_S)
    assert undone and isinstance(task.error, Stopped)
    assert (task.state, str(task.error)) == ("stopped", "Writing was stopped.")


def test_one_that_has_not_begun_does_nothing_once_it_is_stopped() -> None:
    done = list[str]()
    task = Task("Writing", lambda _task: done.append("work"))
    task.stop()
    assert ended(task).state == "stopped" and not done


def test_a_stop_that_comes_too_late_changes_nothing() -> None:
    task = ended(Task("Writing", lambda _task: "all"))
    task.stop()
    assert (task.state, task.is_stopped, task.result()) == ("done", False, "all")

    def ignores(task: Task[str]) -> str:
        task.stop()
        return "all"

    task = ended(Task("Writing", ignores))
    assert (task.state, task.result()) == ("done", "all")


@pytest.mark.parametrize("is_first", [True, False])
def test_stop_returns_at_once_and_kills_what_hangs(is_first: bool) -> None:
    """Also if the kill itself takes long, and if the stop was requested before there was anything to kill."""
    begun, asked, hangs = threading.Event(), threading.Event(), threading.Event()
    returned = list[bool]()

    def kill() -> None:
        returned.append(asked.wait(WITHIN_S))
        hangs.set()

    def work(task: Task[None]) -> None:
        begun.set()
        if is_first:
            assert asked.wait(WITHIN_S)
        task.on_stop(kill)
        assert hangs.wait(WITHIN_S)
        raise ModelError("the process ended with status -9")

    task = Task("Loading", work).start()
    assert begun.wait(WITHIN_S)
    task.stop()
    asked.set()  # the kill waits for an event that is set only after stop() has returned
    assert task.wait(WITHIN_S) and returned == [True]
    assert task.state == "stopped" and "status -9" in str(task.error)


def test_a_kill_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    task = ScriptedTask().start()
    task.on_stop(fails(OSError("gone")).__get__(task))
    task.stop()
    until(lambda: "could not be stopped" in caplog.text)
    task.finish()
    assert task.state == "stopped"


def test_a_task_as_part_of_another_shares_its_progress_and_its_stop() -> None:
    begun = threading.Event()

    def inner(task: Task[str]) -> str:
        task.update(0.25, "the inner part")
        begun.set()
        while True:
            task.sleep(0.01)
            task.check()

    outer = Task[str]("Outer", lambda task: task.include(Task("Inner", inner))).start()
    assert begun.wait(WITHIN_S)
    assert (outer.share, outer.doing) == (0.25, "the inner part")
    outer.stop()
    with pytest.raises(Stopped, match="Inner was stopped"):
        outer.result(WITHIN_S)
    assert outer.state == "stopped"
    whole = Task[int]("Outer", lambda task: task.include(Task("Inner", lambda _task: 3)))
    assert whole.start().result(WITHIN_S) == 3


# Held resources


class Hold:
    """Context manager that records its entry and exit, and requires the task to be running at the exit."""

    def __init__(self) -> None:
        self.seen = list[str]()
        self.task: Task[object] | None = None

    def __enter__(self) -> None:
        self.seen.append("entered")

    def __exit__(self, *_how: object) -> None:
        assert self.task is None or self.task.is_running
        self.seen.append("left")


@pytest.mark.parametrize("ending", ["done", "failed", "stopped", "stopped before it began"])
def test_what_it_holds_is_left_before_it_is_over_in_whatever_way(ending: str) -> None:
    hold = Hold()

    def stops(task: Task[object]) -> None:
        task.stop()
        task.check()

    works: dict[str, Callable[[Task[object]], object]] = {"failed": fails(IndexError("a defect")), "stopped": stops}
    hold.task = task = Task[object]("Writing", works.get(ending, lambda _task: None))
    if ending == "stopped before it began":
        task.stop()
    task.start(hold)
    assert task.wait(WITHIN_S)
    assert task.state == ending.split()[0] and hold.seen == ["entered", "left"]


def test_what_it_holds_can_be_let_go_of_before() -> None:
    hold = Hold()

    def work(task: Task[None]) -> None:
        task.let_go()
        hold.seen.append("something else")

    ended_one = Task("Writing", work).start(hold)
    assert ended_one.wait(WITHIN_S) and hold.seen == ["entered", "left", "something else"]


def test_a_thread_that_cannot_begin_leaves_nothing_held(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    runner, hold = TaskRunner[Task[None]](), Hold()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            runner.start(Task("Writing", lambda _task: None), lambda: hold)
    assert hold.seen == ["entered", "left"] and runner.running is None and runner.last is None


# One at a time


def test_one_at_a_time_and_the_last_is_kept_until_it_is_dismissed() -> None:
    runner = TaskRunner[Task[object]]()
    go_on = threading.Event()
    first = runner.start(Task("Writing", lambda _task: go_on.wait(WITHIN_S) and None))
    assert runner.running is runner.last is first
    runner.dismiss()
    assert runner.last is first
    with pytest.raises(ConfigError, match="Writing is still running, and only one runs at a time"):
        runner.start(Task("Building", lambda _task: None))
    go_on.set()
    assert runner.wait(WITHIN_S) and runner.running is None and runner.last is first
    second = runner.start(Task("Building", fails(ModelError("no compiler"))))
    assert runner.wait(WITHIN_S) and runner.last is second and str(second.error) == "no compiler"
    runner.dismiss()
    assert runner.last is None


def test_what_cannot_be_acquired_begins_nothing() -> None:
    def refuse() -> NoReturn:
        raise ConfigError("A benchmark has the machine to itself.")

    runner, done = TaskRunner[Task[None]](), list[str]()
    with pytest.raises(ConfigError, match="has the machine"):
        runner.start(Task("Writing", lambda _task: done.append("work")), refuse)
    assert runner.last is None and not done


def test_of_many_that_begin_at_once_one_does() -> None:
    runner, go_on, at_once = TaskRunner[Task[object]](), threading.Event(), threading.Barrier(8)
    begun, refused = list[int](), list[int]()

    def begin(number: int) -> None:
        at_once.wait(WITHIN_S)
        try:
            runner.start(Task(f"number {number}", lambda _task: go_on.wait(WITHIN_S)))
        except ConfigError:
            refused.append(number)
        else:
            begun.append(number)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    go_on.set()
    assert runner.wait(WITHIN_S)
    assert len(begun) == 1 and len(refused) == 7


def test_closing_stops_what_runs_and_waits_for_it() -> None:
    runner = TaskRunner[Task[None]]()

    def work(task: Task[None]) -> None:
        while True:
            task.sleep(0.01)
            task.check()

    task = runner.start(Task("Writing", work))
    runner.close()
    assert task.state == "stopped"


def test_closing_several_takes_no_longer_than_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waits = Clock(), list[float]()

    def wait(_task: Task[object], timeout: float) -> bool:
        waits.append(timeout)
        clock.now += timeout
        return False

    go_on, runners = threading.Event(), [TaskRunner[Task[object]]() for _owner in range(3)]
    hanging = [runner.start(Task("Fetching", lambda _task: go_on.wait(WITHIN_S))) for runner in runners]
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "time", SimpleNamespace(monotonic=clock))
        patch.setattr(Task, "wait", wait)
        for runner in runners:
            runner.stop()
        for runner in runners:
            runner.close()
    assert waits == [tasks.ENDS_WITHIN_S, 0.0, 0.0]
    go_on.set()
    assert all(task.wait(WITHIN_S) for task in hanging)
