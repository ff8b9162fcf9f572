"""The History page: configurations, and one of them over time."""

from streamlit.testing.v1 import AppTest

from engine.history import History
from engine.runs import RunRecord
from tests.pages.app import address, choose, open_page, press, said, table


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


def test_the_trend_of_a_run_that_is_gone_says_so(runs: list[RunRecord], history: History) -> None:
    history.runs.delete(runs[0].id)
    assert "deleted" in page(view="runs", trend=f"{runs[0].id}.0").main.error[0].value
    assert "no configuration" in page(view="runs", trend=f"{runs[1].id}.99").main.error[0].value
