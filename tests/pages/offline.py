"""Offline HTML files in a real browser that has no network."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page

from tests.conftest import PATIENT_MS


class Opened:
    """A file in the browser: its page, and what went wrong there."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        page.on("request", lambda asked: self.asked(asked.url))

    def asked(self, url: str) -> None:
        if not url.startswith("file:"):
            self.problems.append(f"asked for {url}")


Open = Callable[..., Opened]


@contextmanager
def opening(browser: Browser, folder: Path) -> Iterator[Open]:
    """Function that writes a file and opens it, in the colours of a scheme."""
    contexts = []

    def opened(content: bytes, scheme: str = "light") -> Opened:
        path = folder / "shared.html"
        path.write_bytes(content)
        context = browser.new_context(color_scheme=scheme, offline=True)  # type: ignore[arg-type]
        context.set_default_timeout(PATIENT_MS)
        contexts.append(context)
        shown = Opened(context.new_page())
        shown.page.goto(path.as_uri())
        return shown

    yield opened
    for context in contexts:
        context.close()
