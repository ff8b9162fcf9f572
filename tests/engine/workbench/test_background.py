import math
import threading

import pytest

from engine.errors import ConfigError, ModelError
from engine.workbench.background import Background, Stopped, Tell
from tests.waiting import until


def ended(background: Background) -> None:
    until(lambda: background.task is None, within_s=10)


def test_one_at_a_time_with_its_progress() -> None:
    background, told, go_on = Background(), threading.Event(), threading.Event()

    def work(tell: Tell) -> None:
        tell(0.5)
        told.set()
        go_on.wait(10)

    background.start("Writing", work)
    assert told.wait(10)
    task = background.task
    assert task is not None and background.doing == task.name == "Writing"
    assert (task.share, task.is_stopped) == (0.5, False) and 0 <= task.left_s < 10
    with pytest.raises(ConfigError, match="Writing is not done yet"):
        background.start("Building", work)
    go_on.set()
    ended(background)
    assert background.error is None and background.doing == ""


def test_stop_ends_it_where_it_next_tells_its_progress() -> None:
    background, undone = Background(), list[str]()

    def work(tell: Tell) -> None:
        try:
            while True:
                tell(0.0)
        finally:
            undone.append("what was begun")

    background.start("Writing", work)
    task = background.task
    assert task is not None and task.left_s == math.inf
    background.stop()
    background.wait(10)
    assert background.task is None and undone
    assert isinstance(background.error, Stopped) and str(background.error) == "Writing was stopped."
    background.start("Writing", lambda tell: tell(1.0))
    background.wait(10)
    assert background.error is None


def test_a_defect_is_told_too() -> None:
    background = Background()
    background.start("Writing", lambda _tell: [][1])
    background.wait(10)
    assert str(background.error) == (
        "Writing failed, through a defect of this program: IndexError('list index out of range')"
    )


def test_a_failure_is_kept_until_the_next_begins() -> None:
    background = Background()

    def fail(_tell: object) -> None:
        raise ModelError("the disk is full")

    background.start("Writing", fail)
    ended(background)
    assert str(background.error) == "the disk is full"
    background.start("Writing", lambda _tell: None)
    ended(background)
    assert background.error is None
