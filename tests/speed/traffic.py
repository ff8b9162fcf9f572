"""The Traffic page in a real browser, with 5,000 calls: until it is painted, and until a new call's row is there."""

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import numpy as np
from playwright.sync_api import Locator, Page, sync_playwright

from engine.api.openai.server import KEY_FILE
from engine.api.openai.traffic import KEPT_CALLS
from engine.models.library import embedded_model
from tests.processes import free_port
from tests.speed.browser import READY_MS, app, chromium, visit
from tests.speed.common import Row, at_most

ROUNDS = 20
SHAPE = "the model that ships"
NUM_CLIENTS, STREAMED = 8, 64
ROWS = "table[aria-label='Calls, newest first'] tbody tr"
TOKENS = 5
"""Place of the cell with the number of generated tokens."""
WAIT_FOR_ROW = """
(table, place) => new Promise((resolve) => {
  const before = table.tBodies[0].rows[0].dataset.number;
  const look = () => {
    const row = table.tBodies[0].rows[0];
    if (row.dataset.number !== before && row.cells[place]?.textContent) resolve(Date.now());
    else requestAnimationFrame(look);
  };
  look();
})
"""


class Api:
    """The API beside the pages."""

    def __init__(self, home: Path, port: int) -> None:
        self._home, self._port = home, port

    def fill(self, num: int) -> None:
        """Make calls of one token each, of several clients at once."""
        with ThreadPoolExecutor(NUM_CLIENTS) as clients:
            list(clients.map(self._ask, [num // NUM_CLIENTS] * NUM_CLIENTS))

    def stream(self) -> float:
        """Make a call that streams; return the time of its first token (Unix time, s)."""
        with self._answer(HTTPConnection("127.0.0.1", self._port), max_tokens=STREAMED, stream=True) as answer:
            answer.readline()
            first = time.time()
            answer.read()
        return first

    def _ask(self, num: int) -> None:
        connection = HTTPConnection("127.0.0.1", self._port)
        for _ in range(num):
            self._answer(connection, max_tokens=1).read()

    def _answer(self, connection: HTTPConnection, **asked: object) -> HTTPResponse:
        key = (self._home / KEY_FILE).read_text("utf-8").strip()
        body = json.dumps({"prompt": "Once upon a time", "store": False, **asked})
        connection.request("POST", "/v1/completions", body, {"authorization": f"Bearer {key}"})
        return connection.getresponse()


def measure(num_rounds: int = ROUNDS, _shape: str = SHAPE) -> list[Row]:
    """Medians and 95th percentiles over visits, and over calls."""
    with workbench() as (address, api), sync_playwright() as playwright:
        api.fill(KEPT_CALLS)
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        visits_s = [visit(browser, address, "Traffic", ROWS)[0] for _ in range(num_rounds)]
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(f"{address}/traffic")
        delays_s = [delay(page, api) for _ in range(num_rounds)]
        browser.close()
    return [
        row(f"Traffic page with {KEPT_CALLS:,} calls, opened from another page, painted", visits_s, 1.0),
        row("a new call, from its first token to its row with a token count", delays_s, 0.3),
    ]


def row(figure: str, seconds: list[float], goal: float) -> Row:
    """The line of one figure: the 95th percentile, with the median beside it."""
    beside = f"median {np.median(seconds):.3f} s of {len(seconds)}"
    return at_most(figure, float(np.percentile(seconds, 95)), goal, beside, "s")


def delay(page: Page, api: Api) -> float:
    """Seconds from the first token of a new call to its row."""
    rows = table(page)
    rows.locator("tbody tr").first.wait_for(timeout=READY_MS)
    firsts: list[float] = []
    asking = threading.Timer(0.2, lambda: firsts.append(api.stream()))
    asking.start()
    shown_ms: float = rows.evaluate(WAIT_FOR_ROW, TOKENS)
    asking.join()
    return shown_ms / 1e3 - firsts[0]


def table(page: Page) -> Locator:
    """The table of calls."""
    return page.get_by_role("grid", name="Calls, newest first")


@contextmanager
def workbench() -> Iterator[tuple[str, Api]]:
    """The workbench with its API; its address, and the API."""
    port = free_port()
    with tempfile.TemporaryDirectory() as home:
        settings = {"LOGITBENCH_HOME": home, "LOGITBENCH_API_PORT": str(port)}
        with app(str(embedded_model()), settings) as address:
            yield address, Api(Path(home), port)
