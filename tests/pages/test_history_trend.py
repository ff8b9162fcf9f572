"""The History page: configurations, and one of them over time."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from streamlit.testing.v1 import AppTest

from engine.bench.analysis import trends
from engine.bench.planning.plan import Plan
from engine.history import History
from engine.history.checks import FIRST_YEAR, LAST_YEAR
from engine.runs import RunRecord
from pages.parts.history import trend_chart
from tests.engine.history.trial_maker import uuid7
from tests.pages.app import address, choose, open_page, press, said, table
from tests.pages.bench_harness import make_run


def page(**query: str) -> AppTest:
    return open_page("history.py", "History", **query)


def test_configurations_are_listed_with_their_medians(runs: list[RunRecord]) -> None:
    at = page(view="runs", rows="cells", order="-tokens_per_s")
    shown = table(at)
    assert len(shown) == 12 and shown["total speed, tok/s"].is_monotonic_decreasing
    assert set(shown["configuration"]) == {cell.label for cell in runs[0].cells}
    press(choose(at, 0, 1), "history_do_compare")
    assert len(address(at)["cells"].split(",")) == 2


def test_a_configuration_over_time(runs: list[RunRecord]) -> None:
    at = press(choose(page(), 0), "history_trend")
    assert address(at)["trend"] == f"{runs[2].id}.0"
    assert at.main.subheader and at.get("plotly_chart")
    assert len(table(at)) == 3
    at.selectbox(key="history_cell").set_value(2).run()
    assert address(at)["trend"] == f"{runs[2].id}.2"
    at.selectbox(key="history_metric").set_value("ttft_s").run()
    assert address(at)["metric"] == "ttft_s" and not at.exception
    at.selectbox(key="history_metric").set_value("gap_p99_s").run()
    assert "was not measured" in said(at)
    press(at, "history_back")
    assert "trend" not in address(at)


def test_the_chart_is_zoomed_and_shows_noise_and_notes(runs: list[RunRecord], history: History) -> None:
    for day in (3, 4):
        later = make_run(Plan.from_dict(runs[0].plan), seed=day, created_at=runs[0].created_at + timedelta(days=day))
        history.runs.keep(later)
    history.marks.note("run", runs[1].id, "new fan <b>")
    points = history.find.trend(runs[0].id, 0, "tokens_per_s")
    found = trends.trend(points)
    figure = trend_chart.chart(found, "tokens_per_s")
    assert len(points) == 5
    assert list(figure.layout.yaxis.range) == list(found.extent) and found.extent[0] > 0
    (noise,) = [trace for trace in figure.data if trace.fill == "toself"]
    assert {min(noise.y), max(noise.y)} == {found.bands[0].low, found.bands[0].high}
    (note,) = figure.layout.annotations
    assert note.text == "new fan &lt;b&gt;" and note.y == points[1].value
    at = page(trend=f"{runs[0].id}.0")
    assert "new fan <b>" in list(table(at)["note"]) and "Tuesday" in list(table(at)["run"])
    at = choose(at, 0)
    at.text_area(key=f"history_do_note_{points[-1].run_id}").set_value("quiet room").run()
    assert table(at)["note"][0] == "quiet room"


def test_the_trend_of_a_run_that_is_gone_says_so(runs: list[RunRecord], history: History) -> None:
    history.runs.delete(runs[0].id)
    assert "deleted" in page(view="runs", trend=f"{runs[0].id}.0").main.error[0].value
    assert "no configuration" in page(view="runs", trend=f"{runs[1].id}.99").main.error[0].value


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Pacific/Apia", "Asia/Kathmandu", "UTC"])
@pytest.mark.parametrize("year", [FIRST_YEAR, LAST_YEAR])
def test_the_oldest_and_the_newest_times_are_shown_in_every_zone(
    history: History, runs: list[RunRecord], monkeypatch: pytest.MonkeyPatch, zone: str, year: int
) -> None:
    day = (1, 1, 0, 0) if year == FIRST_YEAR else (12, 31, 23, 59)
    far = replace(runs[0], id=uuid7(), created_at=datetime(year, *day, tzinfo=UTC))
    history.runs.keep(far)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        listed = table(page())
        shown = page(trend=f"{far.id}.0")
        open_page("benchmark.py", "Benchmark", run=far.id)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert len(listed) == 4
    assert shown.get("plotly_chart") and len(table(shown)) == 4
