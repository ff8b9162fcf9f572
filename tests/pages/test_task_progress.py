"""The line of a background task: its subject, what it does, and the time left in one wording for every page."""

from pathlib import Path

import pytest

from pages.parts import task_progress
from tests.scripted_task import ScriptedTask

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("left_s", "expected"), [(75.0, "75 s left"), (0.4, "1 s left"), (None, task_progress.UNKNOWN)]
)
def test_a_line_has_the_subject_the_step_and_the_time_left(left_s: float | None, expected: str) -> None:
    task = ScriptedTask("Fetching", 0.25, "1 of 4 files", left_s)
    assert task_progress.line(task, "A model") == f"A model · 1 of 4 files · {expected}"
    assert task_progress.line(task) == f"1 of 4 files · {expected}"


def test_a_line_says_what_a_task_waits_for_and_that_it_stops() -> None:
    task = ScriptedTask("Fetching", left_s=75.0)
    task.waits_for = "A benchmark"
    assert task_progress.line(task) == "waiting for: A benchmark"
    task.stop()
    assert task_progress.line(task) == "stopping"


def test_no_page_words_the_time_left_of_a_task_itself() -> None:
    others = [path for path in sorted((ROOT / "pages").rglob("*.py")) if path.name != "task_progress.py"]
    assert [path.name for path in others if ".progress.left" in path.read_text("utf-8")] == []
    assert [path.name for path in others if ".left_s" in path.read_text("utf-8")] == []
