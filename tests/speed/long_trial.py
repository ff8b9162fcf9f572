"""A trial of 4,000 tokens in a real browser: how long it takes to open, the longest task of scrolling and hovering."""

import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from engine.history import History
from tests.engine.history.trial_maker import make_trial, with_stages
from tests.speed.browser import READY_MS, app, chromium
from tests.speed.common import Row, at_most, model

ROUNDS = 5
SHAPE = ""
"""The model that ships, or another: it answers nothing here."""
NUM_TOKENS, NUM_CANDIDATES = 4_000, 256
OPEN_S, LONGEST_MS = 1.0, 50
WHEEL_PX, NUM_WHEELS = 160, 120
NUM_HOVERS = 300
NONE = "0 where none was over 50 ms, below which a browser does not tell of a task"

WATCH = """
  window.longTasks = [];
  new PerformanceObserver((list) => {
    for (const task of list.getEntries()) longTasks.push(task.duration);
  }).observe({ type: "longtask" });
"""
PAINTED = "new Promise((resolve) => requestAnimationFrame(() => setTimeout(() => resolve(performance.now()))))"


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Seconds from the address to all tokens painted, and the longest task of scrolling and of hovering."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "history.duckdb")
        trial = with_stages(make_trial(NUM_TOKENS, NUM_CANDIDATES))
        with History.open(file) as history:
            history.record(trial).result()
        with (
            app(model(shape) if shape else "", {"LOGITBENCH_HISTORY": str(file)}) as address,
            sync_playwright() as playwright,
        ):
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            rows = rows_of(browser, f"{address}/?trial={trial.id}", num_rounds)
            browser.close()
    return rows


def rows_of(browser: Browser, url: str, num_rounds: int) -> list[Row]:
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.add_init_script(WATCH)
    opened_s = [opening_s(page, url) for _ in range(num_rounds + 1)]
    beside = f"first visit, with nothing in the browser's cache: {opened_s[0]:.2f} s"
    opening_ms = longest_ms(page)
    return [
        at_most(f"a trial of {NUM_TOKENS:,} tokens opens", median(opened_s[1:]), OPEN_S, beside, "s"),
        Row("longest task while it opens", opening_ms, "ms"),
        at_most("longest task while it is scrolled", scrolled_ms(page), LONGEST_MS, NONE, "ms"),
        at_most("longest task while tokens are hovered", hovered_ms(page), LONGEST_MS, NONE, "ms"),
    ]


def opening_s(page: Page, url: str) -> float:
    page.goto("about:blank")
    page.goto(url, wait_until="commit")
    page.locator(".root[aria-busy=false] .ending").wait_for(timeout=READY_MS)
    painted_ms: float = page.evaluate(PAINTED)
    assert page.locator(".t.answer").count() == NUM_TOKENS
    return painted_ms / 1e3


def longest_ms(page: Page) -> float:
    """The longest task since this was last asked; 0 where the browser told of none."""
    page.wait_for_timeout(500)
    found: list[float] = page.evaluate("longTasks.splice(0)")
    return max(found, default=0.0)


def scrolled_ms(page: Page) -> float:
    """From the top of the text to its end and back."""
    box = text_box(page)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    longest_ms(page)
    for direction in (1, -1):
        for _ in range(NUM_WHEELS):
            page.mouse.wheel(0, direction * WHEEL_PX)
            time.sleep(0.01)
    return longest_ms(page)


def hovered_ms(page: Page) -> float:
    """Along the lines of the text, a token or two at a time."""
    box = text_box(page)
    longest_ms(page)
    for index in range(NUM_HOVERS):
        row, column = divmod(index * 37, int(box["width"]) - 40)
        page.mouse.move(box["x"] + 20 + column, box["y"] + 12 + row * 26 % (box["height"] - 24))
    return longest_ms(page)


def text_box(page: Page) -> dict[str, Any]:
    text = page.locator(".text")
    text.scroll_into_view_if_needed()
    box = text.bounding_box()
    assert box is not None
    return dict(box)
