"""The History page: reports of chosen runs, trends and trials with text between them, on the page and as a file."""

import pytest
from playwright.sync_api import expect
from streamlit.testing.v1 import AppTest

from engine.history import History
from engine.history.reports import Block, Report
from engine.runs import RunRecord
from engine.workbench import Workbench
from pages.parts.history import report_file
from pages.parts.history.report_file import report_html
from pages.parts.history.report_parts import paragraphs
from tests.engine.history.trial_maker import make_trial
from tests.pages.app import HOSTILE, address, choose, open_page, press, said, table
from tests.pages.offline import Open


def page(**query: str) -> AppTest:
    return open_page("history.py", "History", **query)


@pytest.fixture
def report(history: History, runs: list[RunRecord]) -> str:
    """Id of a report with a text, a run, a trend and a trial."""
    trial = make_trial(6, prompt="Once upon a time")
    history.record(trial).result(60)
    blocks = [
        Block(kind="text", text="# Why\nBecause.\nOf this.\n\nAnd that."),
        Block(kind="run", of=runs[0].id),
        Block(kind="trend", of=f"{runs[0].id}.1", metric="tokens_per_s"),
        Block(kind="trial", of=trial.id),
    ]
    return history.reports.create("Three days", blocks).id


def test_without_a_report_there_is_one_thing_to_do(history: History) -> None:
    at = page(view="reports")
    assert "No reports yet" in said(at)
    press(at, "history_report_new")
    (made,) = history.reports.all()
    assert address(at) == {"view": "reports", "report": made.id, "edit": "1"}


def test_chosen_runs_and_a_trend_are_added_to_a_report(runs: list[RunRecord], history: History) -> None:
    at = press(choose(page(), 0, 2), "history_report_add")
    (made,) = history.reports.all()
    assert made.blocks == tuple(Block(kind="run", of=runs[number].id) for number in (2, 0))
    assert address(at)["report"] == made.id and len(at.get("plotly_chart")) == 2
    at = page(trend=f"{runs[1].id}.0", metric="ttft_s")
    at.selectbox(key="history_report_chosen").set_value(made.id).run()
    press(at, "history_report_add")
    found = history.reports.report(made.id)
    assert found is not None
    assert found.blocks[2:] == (Block(kind="trend", of=f"{runs[1].id}.0", metric="ttft_s"),)


def test_chosen_trials_are_added_too(history: History) -> None:
    trial = make_trial(3)
    history.record(trial).result(60)
    press(choose(page(view="trials"), 0), "history_report_add")
    assert history.reports.all()[0].blocks == (Block(kind="trial", of=trial.id),)


def test_a_report_is_read_at_its_address(report: str, history: History) -> None:
    at = page(view="reports", report=report)
    assert "Three days" in said(at) and "Because\\." in said(at) and "### Why" in said(at)
    assert len(at.get("plotly_chart")) == 2
    (strip,) = [one for one in at.get("bidi_component") if "token_strip" in one.proto.component_name]
    trial = history.reports.report(report)
    assert trial is not None and trial.blocks[3].of in strip.proto.json
    assert "Text" not in [widget.label for widget in at.main.text_area]
    press(at, "history_report_open_1")
    assert [title.value for title in at.title] == ["Benchmark"]


def test_a_report_is_edited(report: str, history: History, runs: list[RunRecord]) -> None:
    def kinds() -> list[str]:
        found = history.reports.report(report)
        assert found is not None
        return [block.kind for block in found.blocks]

    at = press(page(view="reports", report=report), "history_report_edit")
    assert address(at)["edit"] == "1"
    at.text_input(key=f"history_report_name_{report}").set_value("Four days").run()
    press(at, "history_report_arrow_downward_0")
    assert kinds() == ["run", "text", "trend", "trial"]
    press(at, "history_report_remove_2")
    press(at, "history_report_add_text")
    assert kinds() == ["run", "text", "trial", "text"]
    texts = [widget for widget in at.main.text_area if widget.label == "Text"]
    texts[1].set_value("The end.").run()
    found = history.reports.report(report)
    assert found is not None and (found.name, found.blocks[3].text) == ("Four days", "The end.")
    assert found.blocks[1].text.startswith("# Why")
    assert at.button(key="history_report_arrow_upward_0").disabled
    assert at.button(key="history_report_arrow_downward_3").disabled


def test_what_another_tab_wrote_is_not_overwritten(report: str, history: History) -> None:
    at = page(view="reports", report=report, edit="1")
    found = history.reports.report(report)
    assert found is not None
    theirs = Block(kind="text", text="theirs")
    history.reports.put(report, 0, found.blocks[0], theirs)
    next(widget for widget in at.main.text_area if widget.label == "Text").set_value("mine").run()
    assert "changed elsewhere" in at.main.error[0].value
    found = history.reports.report(report)
    assert found is not None and found.blocks[0] == theirs


def test_a_report_is_deleted_with_a_way_back(report: str, history: History) -> None:
    at = press(page(view="reports", report=report), "history_report_delete")
    assert address(at) == {"view": "reports"} and "Three days was deleted" in said(at).replace("\\", "")
    assert history.reports.all() == []
    press(at, "history_report_undo")
    assert list(table(at)["report"]) == ["Three days"]
    assert "deleted or never saved" in page(view="reports", report="nonsense").main.error[0].value


def test_parts_that_are_gone_are_said_in_their_places(report: str, history: History, runs: list[RunRecord]) -> None:
    history.runs.delete(runs[0].id)
    at = page(view="reports", report=report)
    assert said(at).count("was deleted") == 2 and not at.main.error
    assert any("token_strip" in one.proto.component_name for one in at.get("bidi_component"))


def test_the_file_has_all_parts_and_loads_nothing(report: str, history: History, bench: Workbench) -> None:
    found = history.reports.report(report)
    assert found is not None
    file = report_html(bench, history, found).decode()
    assert "<h1>Three days</h1>" in file and "<h2>Why</h2>" in file and "<p>Because.<br>Of this.</p>" in file
    assert file.count('class="figure"') == 2 and file.count('<div class="held-strip" data-trial="') == 1
    assert "default-src 'none'" in file


def test_the_file_of_hostile_texts_has_no_element_of_theirs(history: History, bench: Workbench) -> None:
    trial = make_trial(3, prompt=HOSTILE)
    history.record(trial).result(60)
    made = history.reports.create(
        HOSTILE, [Block(kind="text", text=f"# {HOSTILE}\n{HOSTILE}"), Block(kind="trial", of=trial.id)]
    )
    file = report_html(bench, history, made).decode()
    assert "<script>alert" not in file and "\u202e" not in file
    assert file.count("<script>") == 1 and file.count('<script type="application/json"') == 2
    shown = page(view="reports", report=made.id)
    assert "<script>" not in said(shown) and "**bold" not in said(shown)


def of_trials(history: History, *sizes: int, prompt: str = "Once upon a time") -> Report:
    """A report of trials with so many tokens."""
    trials = [make_trial(size, prompt=prompt) for size in sizes]
    for trial in trials:
        history.record(trial).result(60)
    return history.reports.create("Trials", [Block(kind="trial", of=trial.id) for trial in trials])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_trial_of_the_file_can_be_inspected_without_a_network(
    history: History, bench: Workbench, open_file: Open, scheme: str
) -> None:
    opened = open_file(report_html(bench, history, of_trials(history, 4, 6)), scheme)
    strips = opened.page.locator(".held-strip")
    for strip, size in zip((strips.nth(0), strips.nth(1)), (4, 6), strict=True):
        expect(strip.locator(".t.answer")).to_have_count(size)
        expect(strip.locator(".root")).to_have_attribute("data-theme", scheme)
        strip.locator(".t.answer").nth(2).click()
        expect(strip.locator(".inspector h3").first).to_have_text(f"Token 3 of {size}")
        expect(strip.locator(".candidates tbody tr.chosen")).to_have_count(1)
    other = {"light": "dark", "dark": "light"}[scheme]
    opened.page.emulate_media(color_scheme=other)  # type: ignore[arg-type]
    expect(strips.nth(1).locator(".root")).to_have_attribute("data-theme", other)
    assert opened.problems == []


def test_charts_and_strips_are_in_one_file(report: str, history: History, bench: Workbench, open_file: Open) -> None:
    found = history.reports.report(report)
    assert found is not None
    opened = open_file(report_html(bench, history, found))
    expect(opened.page.locator(".js-plotly-plot")).to_have_count(2)
    expect(opened.page.locator(".held-strip .t.answer")).to_have_count(6)
    assert opened.problems == []


def test_hostile_texts_of_a_trial_are_shown_and_not_run(history: History, bench: Workbench, open_file: Open) -> None:
    prompt = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
    opened = open_file(report_html(bench, history, of_trials(history, 3, prompt=prompt)))
    page = opened.page
    expect(page.locator(".t.answer")).to_have_count(3)
    assert "onerror" in (page.locator("h2").text_content() or "")
    assert page.evaluate("window.hacked") is None and page.locator("img").count() == 0
    assert opened.problems == []


def test_a_file_is_bounded_and_says_which_trials_lost_their_candidates(
    history: History, bench: Workbench, open_file: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = of_trials(history, 4, 300, 5)
    monkeypatch.setattr(report_file, "MOST_BYTES", 40_000)
    opened = open_file(report_html(bench, history, made))
    expect(opened.page.locator(".held-strip .t.answer")).to_have_count(4 + 5)
    expect(opened.page.get_by_text("Shown without its candidates")).to_have_count(1)
    assert opened.problems == []


def test_paragraphs_and_headings_of_a_text() -> None:
    assert paragraphs("# A\nb\nc\n\n\n\nd\r\n\r\n# E") == [(True, "A"), (False, "b\nc"), (False, "d"), (True, "E")]
    assert paragraphs(" \n\n ") == []
