"""Pictures of the README, made anew from the pages as they are: `make pictures`."""

import re
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

from engine.models.library import shipped
from tests.speed.browser import READY_MS, app, chromium
from tests.speed.peers import ROOT

DOCS = ROOT / "docs"
SIZE = (1280, 800)
SCALE = 1.5
SURPRISING = 24
"""Token of the trial that ships whose candidates are shown."""


def main() -> None:
    """Write the pictures into docs/."""
    expect.set_options(timeout=READY_MS)
    recorded = next(shipped("demo").glob("*.trial")).stem
    with app("") as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for name, draw in (("prompt-lab", prompt_lab), ("compare", compare)):
            page = opened(browser, address)
            draw(page, address, recorded)
            page.mouse.move(SIZE[0] - 1, SIZE[1] - 1)
            page.wait_for_timeout(500)
            page.screenshot(path=DOCS / f"{name}.png")
            print(Path("docs", f"{name}.png"))
        browser.close()


def opened(browser: Browser, address: str) -> Page:
    """Return a page that the workbench has drawn, with its model."""
    width, height = SIZE
    page = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=SCALE)
    page.goto(address)
    expect(page.locator(".st-key-do_run button:enabled")).to_be_visible()
    return page


def prompt_lab(page: Page, address: str, recorded: str) -> None:
    """Draw the trial that ships, with the X-ray of a token."""
    page.goto(f"{address}/?trial={recorded}")
    page.locator(".t.answer").nth(SURPRISING).click()
    if not page.locator(".xray[open]").count():
        page.get_by_text("Sampler X-ray").click()
    expect(page.locator(".xray .stages")).to_be_visible()
    page.locator("[data-testid=stMain]").evaluate("main => main.scrollTo(0, 260)")


def compare(page: Page, address: str, _recorded: str) -> None:
    """Draw the two temperatures with which the page opens."""
    page.goto(f"{address}/compare")
    page.get_by_role("button", name=re.compile("^Run")).click()
    expect(page.get_by_role("heading", level=3).first).to_have_text(re.compile("token"))
    expect(page.locator(".shared .candidates tbody tr").first).to_be_visible()


if __name__ == "__main__":
    main()
