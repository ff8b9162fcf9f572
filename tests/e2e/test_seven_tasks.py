"""Seven tasks in a real browser as somebody new does them: who reads only what is on the screen, and counts the clicks.

Each begins at the address of the workbench. What is typed and the Enter after it are no clicks. The seconds are
printed, those of a measurement apart, and not judged: other tests may run beside this one.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, ViewportSize, expect

from engine.bench.planning.plan import Plan
from engine.models import embedded_model
from tests.e2e.conftest import Server, click_in_row, is_settled, running_with
from tests.e2e.test_history import NAME_X
from tests.pages.bench_harness import make_run

pytestmark = pytest.mark.slow

MOST_CLICKS = 3
SCREEN: ViewportSize = {"width": 1400, "height": 900}
MOST_MS = 300_000
"""Time for a measurement."""

AGES = {"Three weeks old": 21, "A week old": 7, "Of yesterday": 1}
"""Runs of the history by name, with their age in days."""


class Newcomer:
    """Somebody at the address of a workbench, whose clicks and seconds are counted."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.num_clicks, self.measuring_s = page, 0, 0.0
        self._began = time.monotonic()
        page.goto(url)
        page.get_by_role("heading", name=re.compile("^(Prompt lab|Overview)$")).first.wait_for()
        is_settled(page)

    @property
    def main(self) -> Locator:
        """The page without its sidebar."""
        return self.page.get_by_test_id("stMain")

    @property
    def answer(self) -> Locator:
        """The sentence that leads the page."""
        return self.main.get_by_role("heading", level=3).first

    def open(self, title: str) -> None:
        """Click a page in the sidebar."""
        self.click(self.page.get_by_test_id("stSidebar").get_by_role("link", name=title, exact=True))
        self.page.get_by_role("heading", name=title, exact=True).wait_for()
        is_settled(self.page)

    def click(self, target: Locator) -> None:
        """Click what is on the screen, as soon as it can be clicked."""
        expect(target).to_be_enabled()
        target.click()
        self.num_clicks += 1
        is_settled(self.page)

    def write(self, target: Locator, text: str) -> None:
        """Type over what a field says, then press Enter."""
        target.fill(text)
        target.press("Enter")
        is_settled(self.page)

    def sees(self, target: Locator) -> None:
        """Wait until it is on the first screen, so that nothing has to be scrolled."""
        expect(target).to_be_visible()
        expect(target).to_be_in_viewport()

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """The seconds of the block are those of a measurement."""
        began = time.monotonic()
        yield
        self.measuring_s += time.monotonic() - began

    def says(self, task: str) -> None:
        """Print what the task took, and require that it took few clicks."""
        seconds = time.monotonic() - self._began - self.measuring_s
        print(f"{task}: {self.num_clicks} clicks, {seconds:.1f} s, and {self.measuring_s:.0f} s of measuring")
        assert self.num_clicks <= MOST_CLICKS


Arrive = Callable[[Server], Newcomer]


@pytest.fixture
def arrive(context: BrowserContext) -> Iterator[Arrive]:
    """Brings somebody new to the address of a server."""
    page = context.new_page()
    page.set_viewport_size(SCREEN)
    yield lambda server: Newcomer(page, server.url)
    page.close()


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory, exported: Path) -> Iterator[Server]:
    """A server whose history has runs of several weeks."""
    plan = Plan(model=str(embedded_model()), axes={"layout": ("1x1", "1x2"), "parallel": (1, 4)}, rounds=8)
    now = datetime.now(UTC)
    runs = [
        replace(make_run(replace(plan, name=name), seed=days), created_at=now - timedelta(days=days))
        for name, days in AGES.items()
    ]
    with running_with(runs, tmp_path_factory.mktemp("used"), exported) as server:
        yield server


def test_why_this_token(shipped: Server, arrive: Arrive) -> None:
    somebody = arrive(shipped)
    if not somebody.page.get_by_role("heading", name="Prompt lab", exact=True).is_visible():
        somebody.open("Prompt lab")  # another test has used this server, which then opens its Overview
    somebody.sees(somebody.main.get_by_text(re.compile(r"^The model ranked .+ \d+(st|nd|rd|th), at [\d.]+\s?%")))
    somebody.says("Why this token?")


def test_what_two_temperatures_change(shipped: Server, arrive: Arrive) -> None:
    somebody = arrive(shipped)
    somebody.open("Compare")
    somebody.click(somebody.main.get_by_role("button", name=re.compile("^Run")))
    expect(somebody.answer).to_have_text(re.compile(r"temperature 0 continues with .+ temperature 1 continues with "))
    somebody.sees(somebody.answer)
    somebody.sees(somebody.main.get_by_text(re.compile(r"^Token \d+ of \d+$")).first)
    somebody.says("What do two temperatures change?")


@pytest.mark.alone
def test_how_long_a_hundred_documents_take_here(shipped: Server, arrive: Arrive) -> None:
    somebody = arrive(shipped)
    somebody.open("Cost")
    measure = somebody.main.get_by_role("button", name=re.compile("^Measure this machine"))
    if measure.count():  # else another test has measured it
        somebody.click(measure)
        with somebody.measuring():
            expect(somebody.answer).to_have_text(re.compile("^This machine takes"), timeout=MOST_MS)
    expect(somebody.answer).to_have_text(re.compile(r"^This machine takes .+(s|min|h)\b"))
    somebody.sees(somebody.answer)
    expect(somebody.main.get_by_label("Documents", exact=True)).to_have_value("100")
    somebody.says("How long do 100 documents take on my machine?")


@pytest.mark.alone
def test_which_number_of_threads_is_best(shipped: Server, arrive: Arrive) -> None:
    somebody = arrive(shipped)
    somebody.open("Benchmark")
    somebody.click(somebody.main.get_by_role("radio", name="Best settings?"))
    somebody.write(somebody.main.get_by_label("Time, min", exact=True), "0.5")
    run = somebody.main.get_by_role("button", name=re.compile("^Run"))
    somebody.click(run)
    with somebody.measuring():
        expect(somebody.main.get_by_role("button", name=re.compile("Edit plan$"))).to_be_enabled(timeout=MOST_MS)
    expect(somebody.answer).to_have_text(re.compile(r"\d+ × \d+|threads?|default"))
    somebody.sees(somebody.answer)
    somebody.says("Which number of threads is best?")


def test_the_run_of_last_week(used: Server, arrive: Arrive) -> None:
    somebody = arrive(used)
    somebody.open("History")
    somebody.sees(somebody.page.get_by_test_id("stDataFrame").first)
    row = list(reversed(AGES)).index("A week old")
    click_in_row(somebody.page, row, x=NAME_X)
    somebody.num_clicks += 1
    somebody.page.get_by_role("heading", name="Benchmark", exact=True).wait_for()
    somebody.sees(somebody.main.get_by_text(re.compile("^A week old · ")))
    somebody.sees(somebody.answer)
    somebody.says("Where is the run of last week?")


def test_whether_a_model_of_seven_billion_parameters_fits(shipped: Server, arrive: Arrive) -> None:
    somebody = arrive(shipped)
    somebody.open("Models")
    somebody.click(somebody.main.get_by_role("radio", name="Memory fit"))
    somebody.write(somebody.main.get_by_role("combobox", name="Model", exact=True), "7b")
    expect(somebody.answer).to_have_text(
        re.compile(r"^A 7B model at Q4_K_M takes [\d.]+ GB .+(fits here|too much here)")
    )
    somebody.sees(somebody.answer)
    somebody.says("Does a 7 B model fit?")


def test_which_sentences_are_similar(shipped: Server, arrive: Arrive) -> None:
    somebody = arrive(shipped)
    somebody.open("Embeddings")
    somebody.write(somebody.main.get_by_label("Find by meaning", exact=True), "the ferry had already left")
    somebody.sees(somebody.main.get_by_text(re.compile("^Nearest, cosine ")))
    somebody.says("Which sentences are similar?")
