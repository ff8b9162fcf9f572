"""What the workbench may be in the middle of when a fault comes. Each begins something and gives what ends it.

The way out waits for what was begun and raises Failure where it broke; after a kill of the app nobody calls it.
"""

import http.client
import random
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from tests.faults.app import STARTS_WITHIN_S, until
from tests.faults.failure import MOST_S
from tests.faults.page import Page
from tests.faults.world import LONG, World

Finish = Callable[[], object]
OWN_TAB, COMPANY_TAB = 5, 7
QUERIES = (
    "SELECT count(*) FROM range(3000000) a WHERE a.range % 7 = 3",
    "SELECT id, prompt FROM trials ORDER BY created_at DESC LIMIT 50",
    "SELECT sum(a.range * b.range) FROM range(3000) a, range(3000) b",
)


def nothing(world: World, draw: random.Random) -> Finish:
    """Nothing but what streams."""
    return lambda: None


def download(world: World, draw: random.Random) -> Finish:
    """The whole history is on its way to somebody who has read its first bytes."""
    link = world.history_link()
    connection = http.client.HTTPConnection(urlsplit(world.app.url).netloc, timeout=MOST_S)
    connection.request("GET", link)
    connection.getresponse().read(draw.choice((1, 100, 5000)))
    return connection.close


def query(world: World, draw: random.Random) -> Finish:
    """The SQL console has been asked something."""
    page = world.tab(OWN_TAB)
    page.go_to("history", "view=sql")
    page.fill(history_sql_editor=draw.choice(QUERIES))
    return _beside(lambda: page.press("history_sql_run"))


def taking_in(world: World, draw: random.Random) -> Finish:
    """Pasted timings are looked at and taken in."""
    page = world.tab(OWN_TAB)
    page.go_to("history", "view=runs")
    lines = [
        f"{draw.randint(10, 999)} tokens in {draw.randint(2, 99)}s (4 threads)" for _ in range(draw.randint(1, 60))
    ]

    def take() -> None:
        page.fill(history_pasted="\n".join(lines))
        if page.find("history_take_in") is not None:
            page.press("history_take_in")

    return _beside(take)


def benchmark(world: World, draw: random.Random) -> Finish:
    """A benchmark measures; the samples that its page counts as done are acknowledged."""
    page = world.tab(COMPANY_TAB)
    page.go_to("benchmark")
    if page.find("watch_stop") is not None:
        return lambda: None  # one measures already, beside the fault
    page.go_to("benchmark", "question=speed")
    page.fill(**PLAN)

    def is_begun() -> bool:
        page.press("plan_run")
        return "run=" in page.query

    # what else holds the machine, an embedding that a link began, refuses it until that is over
    until(is_begun, lambda: f"the benchmark did not start: {page.errors()}", STARTS_WITHIN_S)
    time.sleep(draw.choice((0, 0, 3)))
    page.rerun()
    _note_samples(world, page)

    def stop() -> None:
        page.rerun()
        _note_samples(world, page)
        if page.find("watch_stop") is not None:
            page.press("watch_stop")
        until(lambda: _has_stopped(page), "the benchmark did not stop")

    return stop


PLAN: dict[str, str | float] = {
    "axis_parallel": "1", "axis_layout": "1x1", "plan_num_prompt": 16, "plan_num_generated": 8, "plan_rounds": 6,
}  # fmt: skip
THINGS: dict[str, Callable[[World, random.Random], Finish]] = {
    "nothing else is done": nothing,
    "a download runs": download,
    "a question is answered": query,
    "timings are taken in": taking_in,
    "a benchmark measures": benchmark,
}


def company(world: World, draw: random.Random) -> Finish:
    """What goes on beside a fault of any kind: nothing, or a trial that streams, or now and then a benchmark."""
    lot = draw.random()
    if lot < 0.06:
        return benchmark(world, draw)
    if lot < 0.5:
        world.begin_trial(draw, LONG, number=COMPANY_TAB)
    return lambda: None


def begin(world: World, draw: random.Random) -> tuple[str, Finish]:
    """Begin something drawn by lot; its name and its end."""
    name = draw.choice(sorted(THINGS))
    return name, THINGS[name](world, draw)


def _beside(action: Callable[[], object]) -> Finish:
    thread = ThreadPoolExecutor(1)
    begun = thread.submit(action)
    thread.shutdown(wait=False)
    return begun.result


def _note_samples(world: World, page: Page) -> None:
    run = re.search(r"run=([0-9a-f-]{36})", page.query)
    counts = [re.match(r"([\d,]+) of ", bar.text) for bar in page.of_type("progress")]
    if run is not None and not page.errors():  # an error says that samples are not kept, and why
        world.ledger.runs[run[1]] = max([int(one[1].replace(",", "")) for one in counts if one], default=0)


def _has_stopped(page: Page) -> bool:
    page.rerun()
    return page.find("watch_stop") is None
