"""The Prompt lab in a real browser: what a person sees and does while a model runs."""

import re
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.conftest import RUN, Server, has_ended, is_settled, running
from tests.waiting import until

OpenPage = Callable[[str], Page]
TRIAL = re.compile(r"\?trial=[0-9a-f-]{36}$")


def is_ready(page: Page) -> None:
    """Wait until the page is drawn, with the model there."""
    expect(page.get_by_role("button", name=RUN)).to_be_enabled()
    is_settled(page)


def run(page: Page) -> None:
    is_ready(page)
    before = page.url
    page.get_by_role("button", name=RUN).click()
    expect(page).not_to_have_url(before)
    is_settled(page)


def answer(page: Page) -> Locator:
    return page.locator(".t.answer")


def fill(page: Page, label: str, value: str) -> None:
    """Type into a field once the page is ready, and see that it is taken."""
    is_ready(page)
    field = page.get_by_role("spinbutton", name=label, exact=True)
    field.fill(value)
    field.press("Enter")
    is_settled(page)
    expect(field).to_have_value(value)


def prompt(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Prompt")


def test_a_run_streams_and_ends_in_words(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    fill(page, "Max tokens", "24")
    run(page)
    expect(page).to_have_url(TRIAL)
    has_ended(page)
    expect(answer(page)).to_have_count(24)
    expect(page.locator(".ending")).to_have_text("Stopped at the 24-token limit.")
    expect(page.locator(".figures")).to_contain_text("with inspection")


@pytest.mark.slow
def test_ctrl_enter_runs_the_text_just_typed(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    fill(page, "Max tokens", "4")
    expect(page.get_by_role("button", name=RUN)).to_be_enabled()
    prompt(page).fill("The little tailor")
    prompt(page).press("Control+Enter")
    has_ended(page)
    expect(page.locator(".t.prompt").last).to_contain_text("ailor")


@pytest.mark.slow
def test_a_number_out_of_range_is_refused_and_not_replaced(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    fill(page, "Temperature", "500.00")
    before = page.url
    page.get_by_role("button", name=RUN).click()
    expect(page.get_by_role("alert").filter(has_text="Temperature = 500.0")).to_be_visible()
    assert page.url == before
    expect(page.get_by_role("spinbutton", name="Temperature", exact=True)).to_have_value("500.00")


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 900])
def test_more_stays_where_it_is_whatever_tab_is_chosen(shipped: Server, open_page: OpenPage, width: int) -> None:
    page = open_page(shipped.url)
    page.set_viewport_size({"width": width, "height": 1000})
    is_ready(page)
    page.get_by_role("button", name="More", exact=True).click()
    body = page.get_by_test_id("stPopoverBody")
    expect(body.get_by_role("tab").first).to_be_visible()
    places = []
    for tab in body.get_by_role("tab").all():
        tab.click()
        expect(tab).to_have_attribute("aria-selected", "true")
        box = body.bounding_box()
        assert box is not None
        places.append((box["x"], box["y"], box["width"]))
    assert len(set(places)) == 1


@pytest.mark.slow
def test_hover_shows_candidates_and_click_pins(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    fill(page, "Max tokens", "12")
    run(page)
    has_ended(page)
    expect(answer(page)).to_have_count(12)
    heading = page.locator(".inspector h3")
    answer(page).nth(3).hover()
    expect(heading).to_have_text("Preview · Token 4 of 12")
    expect(page.locator(".inspector tr.chosen")).to_be_visible()
    for _ in range(3):  # a strip that is drawn anew between pressing and releasing the button loses the click
        answer(page).nth(3).click()
        with suppress(AssertionError):
            expect(heading).to_have_text("Token 4 of 12", timeout=10_000)
            break
    expect(heading).to_have_text("Token 4 of 12")
    expect(page.locator(".inspector .sentence")).to_contain_text("The model ranked")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".inspector h3")).to_have_text("Token 5 of 12")


@pytest.mark.slow
def test_the_xray_shows_each_stage_and_stays_closed_where_it_was_closed(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    fill(page, "Max tokens", "12")
    run(page)
    has_ended(page)
    answer(page).nth(3).click()
    xray = page.locator(".inspector .xray")
    expect(xray.locator("tbody th")).to_have_text(["Top-k", "Top-p", "Min-p", "Temperature"])
    expect(xray.locator("tbody tr").first).to_contain_text("40")
    flips = xray.locator(".flips li")
    for index in range(12):
        answer(page).nth(index).click()
        with suppress(AssertionError):
            expect(flips.first).to_be_visible(timeout=10_000)
            break
    expect(flips.first).to_contain_text(re.compile(r"(temperature|top-p|min-p|top-k) (above|below|\d)"))
    page.reload()
    is_ready(page)
    answer(page).nth(4).click()
    expect(xray.locator("tbody th")).to_have_count(4)  # read back from the history, or from the trial in memory
    xray.locator("summary").click()
    expect(xray.locator("table")).to_be_hidden()
    expect(xray.locator("summary")).to_be_focused()
    page.get_by_label("Next token (right arrow)").click()
    expect(page.locator(".inspector h3")).to_have_text("Token 6 of 12")
    expect(xray).to_be_visible()
    expect(xray.locator("table")).to_be_hidden()


@pytest.mark.slow
def test_a_question_mark_lists_the_keys_of_strip_and_page(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    is_ready(page)
    prompt(page).press("End")
    page.keyboard.type("?")
    keys = page.get_by_role("dialog", name="Keys")
    expect(keys).to_be_hidden()
    expect(prompt(page)).to_have_value(re.compile(r"\?$"))
    prompt(page).press("Backspace")
    prompt(page).blur()
    is_settled(page)
    page.keyboard.press("?")
    expect(keys.locator("dl > div", has_text="Ctrl + Enter")).to_have_text("Ctrl + EnterRun")
    page.keyboard.press("Escape")
    expect(keys).to_be_hidden()


@pytest.mark.slow
def test_step_adds_one_token_at_a_time(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    fill(page, "Max tokens", "6")
    run(page)
    has_ended(page)
    prompt(page).fill("Step by step")
    prompt(page).blur()
    expect(page.get_by_text("Edited since this run.")).to_be_visible()
    is_settled(page)
    step = page.get_by_role("button", name="Step", exact=True)
    for count in (1, 2, 3):
        expect(step).to_be_enabled()
        step.click()
        expect(answer(page)).to_have_count(count)
        has_ended(page)


@pytest.mark.slow
def test_continue_goes_on_from_the_same_tokens(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    fill(page, "Max tokens", "8")
    run(page)
    has_ended(page)
    before = answer(page).all_inner_texts()
    page.get_by_role("button", name=re.compile(r"^Continue \+")).click()
    expect(answer(page).nth(20)).to_be_visible()
    has_ended(page)
    assert answer(page).all_inner_texts()[: len(before)] == before


@pytest.mark.slow
def test_a_recent_trial_opens_again_and_can_be_deleted_and_brought_back(shipped: Server, open_page: OpenPage) -> None:
    page = open_page(shipped.url)
    fill(page, "Max tokens", "5")
    prompt(page).fill("A tale to lose")
    prompt(page).blur()
    run(page)
    has_ended(page)
    url = page.url
    prompt(page).fill("Another tale")
    prompt(page).blur()
    expect(page.get_by_text("Edited since this run.")).to_be_visible()
    page.get_by_role("button", name=re.compile("A tale to lose")).first.click()
    expect(prompt(page)).to_have_value("A tale to lose")
    is_settled(page)
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page).not_to_have_url(url)
    page.get_by_role("button", name="Undo", exact=True).click()
    expect(page).to_have_url(url)
    expect(answer(page)).to_have_count(5)


@pytest.mark.slow
def test_stop_ends_a_run_and_keeps_what_came(slow: Server, open_page: OpenPage) -> None:
    page = open_page(slow.url)
    fill(page, "Max tokens", "2000")
    run(page)
    expect(answer(page).nth(2)).to_be_visible()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(".ending")).to_have_text("You stopped it.")
    assert 2 < answer(page).count() < 2000


@pytest.mark.slow
def test_a_reload_in_the_middle_loses_nothing(slow: Server, open_page: OpenPage) -> None:
    page = open_page(slow.url)
    fill(page, "Max tokens", "2000")
    run(page)
    expect(answer(page).nth(5)).to_be_visible()
    before = answer(page).all_inner_texts()
    page.reload()
    expect(answer(page).nth(len(before) + 3)).to_be_visible()
    assert answer(page).all_inner_texts()[: len(before)] == before
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(".ending")).to_have_text("You stopped it.")


@pytest.mark.slow
def test_eight_tabs_stream_side_by_side(slow: Server, open_page: OpenPage) -> None:
    pages = [open_page(slow.url) for _ in range(8)]
    for page in pages:
        page.bring_to_front()
        fill(page, "Max tokens", "2000")
        run(page)
        expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    counts = [answer(page).count() for page in pages]
    for page, count in zip(pages, counts, strict=True):
        page.bring_to_front()
        expect(answer(page).nth(count + 2)).to_be_visible()
        expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    assert len({page.url for page in pages}) == 8
    for page in pages:
        page.bring_to_front()  # the last ones may be over by then
        page.get_by_role("button", name="Stop", exact=True).evaluate_all("found => found.forEach(one => one.click())")
        expect(page.locator(".ending")).to_be_visible()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_server_stops_cleanly_while_a_run_streams(
    tmp_path: Path, slow_model: Path, open_page: OpenPage, number: signal.Signals
) -> None:
    with running(tmp_path, slow_model) as server:
        page = open_page(server.url)
        fill(page, "Max tokens", "2000")
        run(page)
        expect(answer(page).nth(1)).to_be_visible()
        workers = server.workers()
        assert workers
        server.stop(number)
        _, alive = psutil.wait_procs(workers, 60)
        assert not alive


@pytest.mark.slow
def test_workers_end_with_a_server_that_was_killed(tmp_path: Path, slow_model: Path, open_page: OpenPage) -> None:
    with running(tmp_path, slow_model) as server:
        page = open_page(server.url)
        fill(page, "Max tokens", "2000")
        run(page)
        workers = server.workers()
        assert workers
        server.stop(signal.SIGKILL)
        _, alive = psutil.wait_procs(workers, 30)
        assert not alive


@pytest.mark.slow
def test_a_worker_killed_while_streaming_is_said_and_replaced(slow: Server, open_page: OpenPage) -> None:
    page = open_page(slow.url)
    fill(page, "Max tokens", "2000")
    run(page)
    expect(answer(page).nth(1)).to_be_visible()
    slow.workers()[0].kill()
    expect(page.get_by_text("killed").first).to_be_visible()
    until(slow.workers)
    fill(page, "Max tokens", "2")
    run(page)
    expect(answer(page)).to_have_count(2)
