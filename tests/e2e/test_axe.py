"""axe-core on every page in both themes: nothing serious or critical, but for what Streamlit itself draws."""

import importlib.resources
import json
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import Server, is_settled
from tests.e2e.test_every_page import PAGES

pytestmark = pytest.mark.slow
OpenPage = Callable[..., Page]
AXE = (importlib.resources.files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
OF_STREAMLIT = ("[data-testid=stSidebarNavItems]",)
"""The list of the navigation, whose items lie in sections that are no part of the list."""
IMPACTS = ("serious", "critical")
RUN_AXE = "(excluded) => axe.run({ exclude: excluded.map((selector) => [selector]) }, { resultTypes: ['violations'] })"


def violations(page: Page, excluded: tuple[str, ...] = OF_STREAMLIT) -> list[str]:
    """What axe-core calls serious or critical, a line each: rule, selector and the beginning of the element."""
    found = page.evaluate(RUN_AXE, list(excluded))["violations"]
    return [
        f"{rule['id']}: {json.dumps(node['target'])} {node['html'][:120]}"
        for rule in found
        if rule["impact"] in IMPACTS
        for node in rule["nodes"]
    ]


def violations_at_last(page: Page, within_s: float = 60) -> list[str]:
    """The violations that stay: charts take on a new theme last."""
    end = time.monotonic() + within_s
    page.wait_for_timeout(1000)
    while (found := violations(page)) and time.monotonic() < end:
        page.wait_for_timeout(500)
    return found


@pytest.mark.parametrize("title", PAGES)
def test_axe_finds_nothing_serious(kept: Server, open_page: OpenPage, title: str) -> None:
    page = open_page(kept.url + PAGES[title], title)
    is_settled(page)
    page.evaluate(AXE)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        expect(page.get_by_test_id("stApp")).to_have_css("color-scheme", theme)
        assert violations_at_last(page) == [], theme


def test_axe_is_at_work(kept: Server, open_page: OpenPage) -> None:
    page = open_page(kept.url + PAGES["Cost"], "Cost")
    is_settled(page)
    page.evaluate(AXE)
    page.evaluate("document.querySelector('[data-testid=stMain]').append(document.createElement('button'))")
    assert [line.split(":")[0] for line in violations(page)] == ["button-name"]
    assert {line.split(":")[0] for line in violations(page, ())} == {"button-name", "list", "listitem"}
