"""Replay and comparison with another model in the real browser, from the button to the token that changed most."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import lend_exports
from tests.e2e.conftest import Server, is_settled, run_opening, running
from tests.waiting import until

OpenPage = Callable[[str], Page]

pytestmark = pytest.mark.slow
FITS = "list => list.scrollWidth <= list.clientWidth"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, exported: Path, quantised_model: Path) -> Iterator[Server]:
    """A server with a quantisation of its model in the library."""
    home = tmp_path_factory.mktemp("diff")
    lend_exports(home, exported)
    (home / "models").mkdir()
    shutil.copy(quantised_model, home / "models" / "story-Q4_0.gguf")
    with running(home) as found:
        yield found


def run(page: Page) -> None:
    """Run the opening prompt for 24 tokens."""
    run_opening(page, 24)
    expect(page.locator(".t.answer")).to_have_count(24)


def test_a_trial_is_replayed_and_compared_with_its_quantisation(server: Server, open_page: OpenPage) -> None:
    page = open_page(server.url)
    run(page)
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.get_by_text(re.compile("Identical:.* 24 tokens"))).to_be_visible()
    page.get_by_role("button", name="Compare with another model").click()
    expect(page).to_have_url(re.compile(r"[?&]diff=.*story-Q4_0\.gguf"))
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.get_by_text("KL per token")).to_be_visible()
    is_settled(page)
    expect(page.locator(".choice").get_by_role("button", name="Change", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )
    expect(page.locator(".changes h3")).to_have_text("Most changed by story-Q4_0.gguf")
    first = page.locator(".changes tbody tr").first
    change = first.locator(".number").first.inner_text()
    first.get_by_role("button").click()
    expect(page.locator(".inspector .facts").first).to_contain_text(f"change{change} nats")
    expect(page.locator(".t.pinned")).to_be_in_viewport()
    page.reload()
    expect(page.locator(".changes tbody tr").first).to_be_visible()
    expect(page.get_by_text("KL per token")).to_be_visible()
    for width in (1400, 900):
        page.set_viewport_size({"width": width, "height": 900})
        expect(page.locator(".changes .list")).to_be_visible()
        until(lambda: page.locator(".changes .list").evaluate(FITS), "the list is wider than its place")
    page.get_by_role("button", name="Close", exact=True).click()
    expect(page.locator(".changes")).to_be_hidden()
    expect(page).not_to_have_url(re.compile("diff="))
