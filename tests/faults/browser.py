"""The system's own Chromium, for what only a browser can tell: whether markup of somebody else's runs."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from playwright.sync_api import Dialog, Error, Page, sync_playwright

from tests.faults.failure import MOST_S, Failure

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FOREIGN = """[...document.querySelectorAll('*')].some(one => one.shadowRoot?.querySelector('[data-canary]'))
    || !!document.querySelector('[data-canary]') || window.canary !== undefined"""
IS_DRAWN = "document.querySelector('[data-testid=stApp]')?.dataset.testScriptState === 'notRunning'"


class Browser:
    """One running Chromium with one profile; `processes` are those that this program has because of it."""

    def __init__(self) -> None:
        before = {child.pid for child in psutil.Process().children()}
        path = next(filter(None, map(shutil.which, PROGRAMS)))
        self._playwright = sync_playwright().start()
        self._chromium = self._playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        self._context = self._chromium.new_context(reduced_motion="reduce")
        self.processes = {child.pid for child in psutil.Process().children()} - before

    def visit(self, url: str) -> None:
        """Open an address and look at what came; raises Failure where anything foreign ran or a script failed."""
        with self._opened() as (page, seen):
            try:
                page.goto(url)
                page.wait_for_function(IS_DRAWN)
                if page.evaluate(FOREIGN):
                    seen.append("markup of somebody else's is in the page")
                if page.get_by_test_id("stException").count():
                    seen.append(f"traceback: {page.get_by_test_id('stException').first.inner_text()[:300]}")
            except Error as error:
                seen.append(str(error)[:300])
        if seen:
            raise Failure(f"{url[:300]} in a browser: {'; '.join(seen)}")

    @contextmanager
    def _opened(self) -> Iterator[tuple[Page, list[str]]]:
        seen: list[str] = []

        def dialog(shown: Dialog) -> None:
            seen.append(f"a dialog: {shown.message[:100]}")
            shown.dismiss()

        page = self._context.new_page()
        page.set_default_timeout(MOST_S * 1e3)
        page.on("dialog", dialog)
        page.on("pageerror", lambda error: seen.append(f"a script failed: {error}"))
        try:
            yield page, seen
        finally:
            page.close()

    def close(self) -> None:
        """End it."""
        self._chromium.close()
        self._playwright.stop()
