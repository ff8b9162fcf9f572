"""The real server, started as `make app` starts it, and the system's own Chromium."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect
from playwright.sync_api import TimeoutError as NotInTime

from engine.bench.planning.plan import Plan
from engine.history import History
from engine.models import embedded_model
from engine.models.shapes import Shape
from engine.models.synthetic import write_synthetic
from engine.runs import RunRecord
from tests.conftest import PATIENT_MS, lend_exports
from tests.pages.bench_harness import START, make_run
from tests.processes import children_with, free_port

ROOT = Path(__file__).parents[2]
RUN = re.compile("^Run Shortcut")
"""The Prompt lab's button, whose name has its shortcut: a token or a recent trial may be called "run" too."""
ASKING = (Path(__file__).parent / "asking.js").read_text("utf-8")
# Slow enough to be watched: about a tenth of a second for a token on the one core that its server has.
SLOW = Shape(
    architecture="llama", n_vocab=8192, n_ctx_train=2048, n_embd=1024, n_layer=8, n_head=16, n_head_kv=16, n_ff=2816,
    norm_eps=1e-5, rope_base=10_000,
)  # fmt: skip


class Server:
    """`streamlit run app.py` on a free port, with a home folder of its own.

    One with a model of its own, which is slow, has a single core: the others are for the browser and for other tests.
    program: module that runs in place of `streamlit`.
    """

    def __init__(self, home: Path, model: Path | None = None, program: str = "streamlit") -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.home = home
        environment = {**os.environ, "LOGITBENCH_HOME": str(home), "LOGITBENCH_MODEL": str(model or "")}
        command = [sys.executable, "-m", program, "run", "app.py", f"--server.port={self.port}"]
        self.log = home / "server.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--server.headless=true"], cwd=ROOT, env=environment, stdout=log, stderr=log
            )
        if model:
            os.sched_setaffinity(self.process.pid, {max(os.sched_getaffinity(0))})

    def wait(self, seconds: float = 120) -> None:
        """Return when the server answers."""
        end = time.monotonic() + seconds
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/_stcore/health", timeout=60).close()
                return
            except OSError:
                assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()
                time.sleep(0.1)

    def workers(self) -> list[psutil.Process]:
        """The worker processes that are alive."""
        return children_with("engine.pool.worker", psutil.Process(self.process.pid))

    def stop(self, number: int = signal.SIGINT, seconds: float = 60) -> int:
        """End the server by a signal and wait for it; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)


@contextmanager
def running(home: Path, model: Path | None = None, program: str = "streamlit") -> Iterator[Server]:
    """A server for as long as the block lasts."""
    server = Server(home, model, program)
    try:
        server.wait()
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


@pytest.fixture(scope="session")
def slow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights that takes its time."""
    path = tmp_path_factory.mktemp("models") / "slow.gguf"
    write_synthetic(SLOW, path, "Q8_0")
    return path


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory, exported: Path) -> Iterator[Server]:
    """A server with the model that ships."""
    home = tmp_path_factory.mktemp("shipped")
    lend_exports(home, exported)
    with running(home) as server:
        yield server


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory, slow_model: Path) -> Iterator[Server]:
    """A server with the slow model."""
    with running(tmp_path_factory.mktemp("slow"), slow_model) as server:
        yield server


@pytest.fixture(scope="session")
def runs() -> list[RunRecord]:
    """Two runs with known figures, as if they had been measured a day apart."""
    plan = Plan(model=str(embedded_model()), axes={"layout": ("1x1", "1x2"), "parallel": (1, 4)}, rounds=8)
    return [
        replace(
            make_run(replace(plan, name=name), seed=day), created_at=START + timedelta(days=day),
            machine={"name": "The attic"},
        )
        for day, name in enumerate(("Morning", "Evening"))
    ]  # fmt: skip


@contextmanager
def running_with(runs: list[RunRecord], home: Path, exported: Path) -> Iterator[Server]:
    """A server with the model that ships, and these runs in its history."""
    lend_exports(home, exported)
    with History.open(home / "history.duckdb") as history:
        for run in runs:
            history.runs.keep(run)
    with running(home) as server:
        yield server


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory, runs: list[RunRecord], exported: Path) -> Iterator[Server]:
    """A server with the model that ships and two runs, which no test may change."""
    with running_with(runs, tmp_path_factory.mktemp("kept"), exported) as server:
        yield server


@contextmanager
def profile(browser: Browser, **options: Any) -> Iterator[BrowserContext]:
    """A browser profile for as long as the block lasts.

    From the second page on, Streamlit's own files are in its cache, compiled: an empty page of the servers' host keeps
    the process of their pages. options: as for `Browser.new_context`.
    """
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENT_MS)
    address = "http://127.0.0.1/empty"
    context.route(address, lambda route: route.fulfill(body=""))
    context.new_page().goto(address)
    context.unroute(address)
    yield context
    context.close()


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A profile in which nothing moves."""
    with profile(browser, viewport={"width": 1400, "height": 1000}, reduced_motion="reduce") as context:
        context.add_init_script(ASKING)
        yield context


@pytest.fixture
def open_page(context: BrowserContext) -> Iterator[Callable[..., Page]]:
    """Opens an address and waits until the page can be used, the Prompt lab by default; page errors fail the test."""
    errors: list[str] = []
    pages: list[Page] = []

    def open_(url: str, title: str = "Prompt lab") -> Page:
        page = context.new_page()
        pages.append(page)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        page.get_by_role("heading", name=re.compile(f"^({title}|Overview)$")).first.wait_for()
        if title == "Prompt lab" and page.url.endswith("/overview"):  # where a server that has been used opens
            page.get_by_role("link", name=title).first.click()
        page.get_by_role("heading", name=title, exact=True).wait_for()
        return page

    yield open_
    for page in pages:
        page.close()
    assert not errors


SETTLED = """() => !window.isAsking?.()
  && document.querySelector("[data-testid=stApp]")?.dataset.testScriptState === 'notRunning'"""


def is_settled(page: Page) -> None:
    """Wait until the script has drawn the whole page, and no run of it that was asked for is still to begin.

    The page is looked at in every frame; `expect` looks ever more rarely, soon once a second.
    """
    page.wait_for_function(SETTLED, timeout=PATIENT_MS)


def has_ended(page: Page) -> None:
    """Wait until the strip shows the trial of the address to its end, and another may be run."""
    expect(page.get_by_role("button", name=RUN)).to_be_enabled()
    strip_has_ended(page)


def run_opening(page: Page, num_tokens: int) -> None:
    """Run the opening prompt for this many tokens, as soon as there is an engine."""
    expect(page.get_by_role("button", name=RUN)).to_be_enabled()
    is_settled(page)
    field = page.get_by_label("Max tokens", exact=True)
    field.fill(str(num_tokens))
    field.press("Enter")
    is_settled(page)
    before = page.url
    page.get_by_role("button", name=RUN).click()
    expect(page).not_to_have_url(before)
    has_ended(page)


def strip_has_ended(page: Page) -> None:
    """Wait until the strip shows the trial of the address to its end."""
    is_settled(page)
    asked = parse_qs(urlsplit(page.url).query).get("trial", [""])[0]
    expect(page.locator(f".root[data-trial^='{asked}'][aria-busy=false] .ending")).not_to_be_empty()
    is_settled(page)


def choose_option(box: Locator, name: re.Pattern[str]) -> None:
    """Choose from a list; opens it again where a task that ended drew the page anew, which closes it."""
    options = box.page.get_by_role("option")
    shown: list[list[str]] = []
    for _ in range(3):
        box.click()
        with suppress(NotInTime):
            options.filter(has_text=name).click(timeout=20_000)
            return
        shown.append(options.all_inner_texts())
        box.press("Escape")
        is_settled(box.page)
    raise AssertionError(f"no option {name.pattern}: {shown}")


def choose_row(page: Page, number: int, *, table: int = 0) -> None:
    """Click the box before a row of a table, which is drawn on a canvas."""
    click_in_row(page, number, x=18, table=table)
    is_settled(page)


def click_in_row(page: Page, number: int, *, x: int, table: int = 0) -> None:
    """Click into a row of a table once its canvas is drawn: until then it takes no clicks."""
    frame = page.get_by_test_id("stDataFrame").nth(table)
    expect(frame.locator(f"canvas tr[aria-rowindex='{number + 2}']")).to_be_attached()
    frame.click(position={"x": x, "y": 35 * (number + 1) + 18})


def has_room_for_its_buttons(page: Page, control: Locator, *, table: int = 0) -> None:
    """Where a table is pointed at, its own buttons lie below the control that stands above it."""
    frame = page.get_by_test_id("stDataFrame").nth(table)
    frame.hover()
    element = frame.locator("xpath=ancestor::*[@data-testid='stElementContainer'][1]")
    buttons = element.get_by_test_id("stElementToolbarButtonContainer")
    expect(buttons).to_be_visible()
    above, below = control.bounding_box(), buttons.bounding_box()
    assert above is not None and below is not None
    assert above["y"] + above["height"] <= below["y"]
