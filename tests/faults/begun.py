"""What the workbench may be in the middle of when a fault comes. Each begins something and gives what ends it.

The way out waits for what was begun and raises Failure where it broke; after a kill of the app nobody calls it.
"""

import http.client
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from tests.faults.app import until
from tests.faults.failure import MOST_S, Failure
from tests.faults.page import Page
from tests.faults.world import World

Finish = Callable[[], object]
OWN_TAB = 5
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
    page.fill("history_sql_editor", draw.choice(QUERIES))
    return _beside(lambda: page.press("history_sql_run"))


def taking_in(world: World, draw: random.Random) -> Finish:
    """Pasted timings are looked at and taken in."""
    page = world.tab(OWN_TAB)
    page.go_to("history", "view=runs")
    lines = [
        f"{draw.randint(10, 999)} tokens in {draw.randint(2, 99)}s (4 threads)" for _ in range(draw.randint(1, 60))
    ]

    def take() -> None:
        page.fill("history_pasted", "\n".join(lines))
        if page.find("history_take_in") is not None:
            page.press("history_take_in")

    return _beside(take)


def benchmark(world: World, draw: random.Random) -> Finish:
    """A benchmark measures; its samples shown so far count as acknowledged."""
    page = world.tab(OWN_TAB)
    page.go_to("benchmark", "question=speed")
    for key, value in PLAN.items():
        page.fill(key, value)
    page.press("plan_run")
    if "run=" not in page.query:
        raise Failure(f"the benchmark did not start: {page.errors()}")

    def stop() -> None:
        page.rerun()
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


def begin(world: World, draw: random.Random) -> tuple[str, Finish]:
    """Begin something drawn by lot; its name and its end."""
    name = draw.choice(sorted(THINGS))
    return name, THINGS[name](world, draw)


def _beside(action: Callable[[], object]) -> Finish:
    thread = ThreadPoolExecutor(1)
    begun = thread.submit(action)
    thread.shutdown(wait=False)
    return begun.result


def _has_stopped(page: Page) -> bool:
    page.rerun()
    return page.find("watch_stop") is None
