import threading

import pytest

from engine.errors import ConfigError, ModelError
from engine.workbench.background import Background, Task
from tests.waiting import until


def ended(background: Background) -> None:
    until(lambda: background.task is None, within_s=10)


def test_one_at_a_time_with_its_progress() -> None:
    background, told, go_on = Background(), threading.Event(), threading.Event()

    def work(tell: object) -> None:
        assert callable(tell)
        tell(0.5)
        told.set()
        go_on.wait(10)

    background.start("Writing", work)
    assert told.wait(10)
    assert background.task == Task("Writing", 0.5)
    with pytest.raises(ConfigError, match="Writing is not done yet"):
        background.start("Building", work)
    go_on.set()
    ended(background)
    assert background.error is None


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
