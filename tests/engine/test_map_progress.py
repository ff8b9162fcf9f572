"""The progress line of many prompts, at moments that the test sets."""

from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import map_progress
from engine.map_progress import MapProgress, PromptsLine

PAUSES = st.lists(st.floats(0.01, 60), min_size=1, max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pauses=PAUSES, is_total_known=st.booleans())
def test_time_left_is_shown_only_while_prompts_are_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pauses: list[float], is_total_known: bool
) -> None:
    """A prompt ends after each pause; where their number is not known, the share of the file is."""
    now, num = 0.0, len(pauses)
    monkeypatch.setattr(map_progress, "time", SimpleNamespace(monotonic=lambda: now))
    line = PromptsLine()
    for index, pause in enumerate(pauses):
        now += pause
        progress = MapProgress(index + 1, 0, 10 * (index + 1), num if is_total_known else None)
        line.show(progress, None if is_total_known else (index + 1) / num)
    assert "left" not in capsys.readouterr().err.splitlines()[-1]
    line.show(MapProgress(num, 0, 10 * num, num), is_last=True)
    assert ", in " in capsys.readouterr().err


def test_the_first_tenth_of_many_prompts_has_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(map_progress, "time", SimpleNamespace(monotonic=lambda: now))
    line = PromptsLine()
    now = 10.0
    line.show(MapProgress(10, 0, 50, 100))
    assert capsys.readouterr().err == "10 of 100 prompts, 5.00 tok/s, 2 min left\n"
