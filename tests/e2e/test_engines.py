"""An external engine in the real browser: added in the model bar, run, and what it does not tell said in its place."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Page, expect

from tests.conftest import lend_exports
from tests.e2e.conftest import RUN, Server, has_ended, is_settled, run_opening, running
from tests.processes import children_with
from tests.servers import our_server
from tests.waiting import until

OpenPage = Callable[[str], Page]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def elsewhere(story_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of our own API, as another program serves it."""
    with our_server(story_model, tmp_path_factory.mktemp("elsewhere"), "--n-ctx", "256") as address:
        yield address


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, exported: Path) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("engines")
    lend_exports(home, exported)
    with running(home) as found:
        yield found


def test_an_engine_is_added_run_and_opened_again(server: Server, elsewhere: str, open_page: OpenPage) -> None:
    page = open_page(server.url)
    expect(page.get_by_role("button", name=RUN)).to_be_enabled()
    is_settled(page)
    page.get_by_role("button", name="Change", exact=True).first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("External engine").click()
    address = dialog.get_by_role("textbox", name="Address")
    address.fill("localhost:8080")
    dialog.get_by_role("button", name="Add and connect").click()
    expect(dialog.get_by_text("must be the address of a server")).to_be_visible()
    address.fill("http://me:secret@localhost")
    dialog.get_by_role("button", name="Add and connect").click()
    expect(dialog.get_by_text("The address holds a password")).to_be_visible()
    address.fill(f"{elsewhere}/v1")
    dialog.get_by_role("textbox", name="Name").fill("other desk")
    dialog.get_by_role("button", name="Add and connect").click()
    expect(page.get_by_role("button", name="This engine")).to_be_visible()
    expect(
        page.get_by_text(re.compile(f"{elsewhere.rpartition(':')[2]}.*context 256", re.DOTALL)).first
    ).to_be_visible()
    run_opening(page, 24)
    page.locator(".t.answer").nth(5).click()
    assert_figures(page)
    page.goto(page.url)  # from the history, by its address, with the token that was pinned
    has_ended(page)
    assert_figures(page)


def test_a_server_is_started_run_and_stopped(server: Server, open_page: OpenPage) -> None:
    page = open_page(server.url)
    is_settled(page)
    page.get_by_role("button", name="Change", exact=True).first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("External engine").click()
    dialog.get_by_text("Start one here").click()
    dialog.get_by_text("llama_cpp.server", exact=True).click()
    dialog.get_by_role("spinbutton", name="Context").fill("3")
    dialog.get_by_role("spinbutton", name="Context").press("Enter")
    expect(dialog.get_by_text("must be a whole number from 16 to")).to_be_visible()
    dialog.get_by_role("spinbutton", name="Context").fill("256")
    dialog.get_by_role("spinbutton", name="Context").press("Enter")
    dialog.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_text("started here")).to_be_visible()
    is_settled(page)
    page.get_by_role("button", name=RUN).click()
    expect(page.get_by_text("answered by llama_cpp.server")).to_be_visible()
    (process,) = children_with("python_server", psutil.Process(server.process.pid))
    page.get_by_role("button", name="Stop", exact=True).last.click()
    expect(page.get_by_text("No model is loaded.", exact=True)).to_be_visible()
    until(lambda: not process.is_running(), "the server outlives its engine")


def assert_figures(page: Page) -> None:
    """A pinned token has its candidates, a bound of the entropy, and no figures that were not reported."""
    expect(page.get_by_text("answered by other desk")).to_be_visible()
    inspector = page.get_by_role("complementary", name="Inspector").first
    expect(inspector.get_by_text(re.compile("^≥ [0-9.]+ bits$"))).to_be_visible()
    expect(inspector.get_by_text("all others")).to_be_visible()
    expect(inspector.get_by_text("draw", exact=True)).to_have_count(0)
    expect(inspector.get_by_text("after sampling")).to_have_count(0)
    expect(page.get_by_role("button", name="Share", exact=True)).to_be_visible()
    is_settled(page)
    for name in ("What if", "Ban", "Replay"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    expect(page.get_by_label("Watch a word")).to_be_hidden()
