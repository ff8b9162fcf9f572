"""From a token decoded to a token visible: the Prompt lab in a real browser while the model uses all cores."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright

from tests.processes import free_port
from tests.speed.common import Row, at_most, model
from tests.speed.peers import ROOT

ROUNDS = 1
SHAPE = "llama-1.1b-32k"
READY_MS = 120_000
SETTLE_MS = 2_000
FOLLOW = """([title, rows, readyMs]) => new Promise((resolve, reject) => {
  const began = performance.now();
  const links = [...document.querySelectorAll("[data-testid=stSidebarNavLink]")];
  links.find((link) => link.textContent.includes(title)).click();
  const roots = () => [document, ...[...document.querySelectorAll("*")].flatMap((host) => host.shadowRoot ?? [])];
  const look = () => {
    if (performance.now() - began > readyMs) return reject(new Error(`${title} has no ${rows} after ${readyMs} ms`));
    const found = roots().flatMap((root) => [...root.querySelectorAll(rows)]);
    if (!found.at(-1)?.getClientRects().length) return requestAnimationFrame(look);
    requestAnimationFrame(() => setTimeout(() => resolve([performance.now() - began, found.length])));
  };
  requestAnimationFrame(look);
})"""
"""Milliseconds from a click in the navigation until rows are painted, and how many; fails after `readyMs`.

Each frame is looked at: Playwright's own waits look after 20, 50, 100 and 100 ms, then every 500 ms.
"""


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """95th percentile over the tokens of a stream, the first ten left out."""
    with app(model(shape)) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(f"{address}/?latency=1")
        found = [delays(stamps) for stamps in (stream(page) for _ in range(num_rounds))]
        browser.close()
    all_ms = np.concatenate(found)
    beside = f"median {np.median(all_ms):.0f} ms, {len(all_ms)} messages"
    return [at_most("token decoded to visible, p95", float(np.percentile(all_ms, 95)), 30, beside, "ms")]


def stream(page: Page) -> list[dict[str, Any]]:
    """Run the prompt that stands there and give the strip's time stamps of it."""
    page.evaluate("window.__logitbench = []")
    run = page.locator(".st-key-do_run button")
    run.wait_for(timeout=READY_MS)
    page.wait_for_function("document.querySelector('.st-key-do_run button')?.disabled === false", timeout=READY_MS)
    run.click()
    page.locator(".st-key-do_stop").wait_for(timeout=READY_MS)
    run.wait_for(timeout=READY_MS)
    found: list[dict[str, Any]] = page.evaluate("window.__logitbench")
    return found


def delays(stamps: list[dict[str, Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Milliseconds from decoded to painted; both clocks are this machine's."""
    timed = [stamp for stamp in stamps if stamp.get("decodedAt") and stamp["first"] >= 10]
    if not timed:
        raise SystemExit("The page gave no time stamps: nothing was streamed.")
    return np.array([stamp["origin"] + stamp["painted"] - 1e3 * stamp["decodedAt"] for stamp in timed])


def visit(browser: Browser, address: str, title: str, rows: str) -> tuple[float, int]:
    """Seconds from a click on the page's link to its rows, once the page before it stands still; number of rows.

    rows: their selector, in the document or in a component.
    """
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(f"{address}/cost")
    page.get_by_role("heading", name="Cost", exact=True).wait_for(timeout=READY_MS)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(SETTLE_MS)
    milliseconds, num_rows = page.evaluate(FOLLOW, [title, rows, READY_MS])
    page.close()
    return milliseconds / 1e3, num_rows


@contextmanager
def app(path: str, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """The workbench on a free port with a history of its own; gives its address. settings: further LOGITBENCH_*."""
    port = free_port()
    words = ["-m", "streamlit", "run", "app.py", "--server.headless", "true", "--server.port", str(port)]
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {"LOGITBENCH_MODEL": path, "LOGITBENCH_HOME": home, **settings}
        log = (Path(home) / "log").open("w")
        with log:
            process = subprocess.Popen(
                [sys.executable, *words], cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
            try:
                wait_for(port, process)
                yield f"http://127.0.0.1:{port}"
            finally:
                process.terminate()
                process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Return when the server answers; exits when it ended instead."""
    while process.poll() is None:
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/_stcore/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.2)
        finally:
            connection.close()
    sys.exit("The workbench ended before it answered.")


def chromium() -> str:
    """Path of the system's Chromium; exits with the remedy when there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path:
            return path
    sys.exit(
        "Chromium was not found. On Debian: sudo apt install chromium; on Ubuntu: sudo apt install chromium-browser"
    )
