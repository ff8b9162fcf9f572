"""The pages in a real browser: the first visit until its own tokens, and from page to page with a long history."""

import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright

from tests.speed.browser import READY_MS, app, chromium
from tests.speed.common import Row, at_most
from tests.speed.long_history import long_history

ROUNDS = 100
SHAPE = ""
FIRST_S, PAGE_MS = 8, 300
SETTLE_MS = 400
NAVIGATION = ("Overview", "Compare", "Benchmark", "History", "Cost", "Models", "Embeddings", "Traffic", "Prompt lab")
GO = """(title) => new Promise((resolve) => {
  const began = performance.now();
  const links = [...document.querySelectorAll("[data-testid=stSidebarNavLink]")];
  links.find((link) => link.textContent.includes(title)).click();
  const main = document.querySelector("[data-testid=stMain]");
  const look = () => {
    const heading = main.querySelector("h1")?.textContent ?? "";
    const isStale = main.querySelector("[data-stale=true]");
    const rest = main.innerText.trim().length - heading.length;
    if (!heading.startsWith(title) || isStale || rest < 40) return requestAnimationFrame(look);
    requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - began)));
  };
  requestAnimationFrame(look);
})"""
"""Milliseconds from a click in the navigation until the page's title and 40 characters below it are painted."""


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Rows of the first visit, then of the pages."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        rows = [_first_visit(browser, shape), _pages(browser, num_rounds, shape)]
        browser.close()
    return rows


def _first_visit(browser: Browser, model: str) -> Row:
    """From the ready server of a second start to the first own token: one click, nothing in the browser's cache."""
    with app(model):
        pass
    with app(model) as address:
        began = time.monotonic()
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(address)
        run = page.locator(".st-key-do_run button:enabled")
        run.wait_for(timeout=READY_MS)
        shown = page.locator(".root[data-trial]").get_attribute("data-trial")
        run.click()
        page.locator(f".root[data-trial]:not([data-trial='{shown}']) .t.answer").first.wait_for(timeout=READY_MS)
        seconds = time.monotonic() - began
        page.close()
    return at_most("first visit until its own first token, one click", seconds, FIRST_S, "", "s")


def _pages(browser: Browser, num_rounds: int, model: str) -> Row:
    with TemporaryDirectory() as folder:
        file = Path(folder, "history.duckdb")
        shutil.copyfile(long_history(), file)
        with app(model, {"LOGITBENCH_HISTORY": str(file)}) as address:
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            page.goto(f"{address}/cost")
            page.get_by_role("heading", name="Cost", exact=True).wait_for(timeout=READY_MS)
            for title in NAVIGATION:
                _go(page, title)
            titles = [NAVIGATION[number % len(NAVIGATION)] for number in range(num_rounds)]
            found = [(_go(page, title), title) for title in titles]
            page.close()
    all_ms = np.array([one for one, _ in found])
    slowest = max(NAVIGATION, key=lambda name: np.median([one for one, title in found if title == name] or [0]))
    of_slowest = np.median([one for one, title in found if title == slowest])
    beside = f"median {np.median(all_ms):.0f} ms of {len(all_ms)}; slowest page {slowest}, median {of_slowest:.0f} ms"
    figure = "page to page, 10,000 runs and trials, until its content, p95"
    return at_most(figure, float(np.percentile(all_ms, 95)), PAGE_MS, beside, "ms")


def _go(page: Page, title: str) -> float:
    milliseconds: float = page.evaluate(GO, title)
    page.wait_for_timeout(SETTLE_MS)
    return milliseconds
