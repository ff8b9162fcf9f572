"""What holds after every fault: nothing is lost, hung, left over or run, and memory is where it was."""

import random
from pathlib import Path

import psutil

from engine.specs import PoolSpec
from tests.faults import begun, races
from tests.faults.app import STARTS_WITHIN_S, private_bytes, until
from tests.faults.failure import Failure
from tests.faults.page import Page
from tests.faults.world import CANARY, NUM_TABS, SHORT, World

PAGES = ("", "compare", "benchmark", "history", "cost", "models")
"""Those that are looked at after each fault; Embeddings starts PyTorch at its first visit, for which links suffice."""

MOST_APP_GROWTH = 50 << 20
MOST_POOL_GROWTH = 2 << 20
"""Bytes. A worker's own memory moves by less than this between two looks with nothing wrong: allocator and stacks."""
MOST_CHILDREN = 12
NUM_FILLING = 440
"""Tokens of a prompt that nearly fills a sequence of the model that ships."""
NUM_RACES, NUM_WARM = 4, 6
"""Races and looks of the warm-up. The interpreter keeps the memory of what ran at the same time at most: so many tabs
as faults use, with as many scripts at once, make what is kept to be used again grow no more."""


class Checks:
    """Looks at a world after each fault. `warm_up` notes the memory that all later looks are held against."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.app_bytes = self.worker_bytes = 0
        self.most_app_bytes = self.most_worker_bytes = 0

    def warm_up(self, draw: random.Random) -> None:
        """Open every page and do everything a few times, so that what is loaded only once is loaded."""
        world = self._world
        for name in (*PAGES, "embeddings", *PAGES):
            world.tab().go_to(name)
        for begin in (begun.query, begun.taking_in, begun.benchmark) * 2:
            begin(world, draw)()
            world.lose_tab(begun.OWN_TAB)
        for number in range(NUM_TABS):
            world.ending(world.begin_trial(draw, SHORT, number=number), most_s=STARTS_WITHIN_S)
        for number in range(PoolSpec().parallel):  # the system gives a cache its memory as it is filled
            world.ending(world.begin_trial(draw, text=f"{number}{' king' * NUM_FILLING}"), most_s=STARTS_WITHIN_S)
        for number in range(begun.COMPANY_TAB + 1):
            world.tab(number).go_to(PAGES[number % len(PAGES)])
        for _ in range(NUM_RACES):
            races.race(world, draw)
        for _ in range(NUM_WARM):
            self.all(draw)
        self.app_bytes, self.worker_bytes = private_bytes(world.app.process), self._worker_bytes()

    def all(self, draw: random.Random) -> None:
        """Every check; raises Failure with the first that does not hold."""
        world = self._world
        world.app.is_healthy()
        world.pulse()
        self._pages(draw)
        self._trials(draw)
        world.release()
        self._processes()
        self._memory()
        self._nothing_written()

    def _pages(self, draw: random.Random) -> None:
        """Some page is drawn without a traceback; which one is drawn by lot."""
        self._world.tab().go_to(draw.choice(PAGES[1:]))

    def _trials(self, draw: random.Random) -> None:
        """A fresh trial runs, is kept, and so are those of before."""
        world = self._world
        end = world.ending(world.begin_trial(draw))
        if end.get("error"):
            raise Failure(f"a fresh trial failed: {end['error']}")
        link = world.history_link()
        try:
            world.ledger.acknowledge(world.app.url, link, world.ended, draw)
        except Failure as failure:
            page = world.tab()
            page.go_to("", f"trial={world.ended[-1]}")
            raise Failure(f"{failure}; its page says {page.errors()}; log: {world.app.log_end()}") from failure
        world.ended.clear()

    def _processes(self) -> None:
        app = self._world.app
        app.has_no_orphans()
        until(lambda: len(app.children()) <= MOST_CHILDREN, f"the app keeps more than {MOST_CHILDREN} processes")

    def _memory(self) -> None:
        """Neither app nor workers hold more than after the warm-up; what is let go of late has some seconds."""
        if not self.app_bytes:
            return
        until(lambda: self._is_slim() or self._look_elsewhere(), lambda: f"memory: {self._memory_text()}")
        self.most_app_bytes = max(self.most_app_bytes, private_bytes(self._world.app.process))
        self.most_worker_bytes = max(self.most_worker_bytes, self._worker_bytes())

    def _look_elsewhere(self) -> bool:
        """Open and close a tab: Streamlit gives closed ones up only when another comes."""
        with Page(self._world.app.url):
            return False

    def _is_slim(self) -> bool:
        app, worker = private_bytes(self._world.app.process), self._worker_bytes()
        return app <= self.app_bytes + MOST_APP_GROWTH and worker <= self.worker_bytes + MOST_POOL_GROWTH

    def _memory_text(self) -> str:
        app, worker = private_bytes(self._world.app.process), self._worker_bytes()
        return (
            f"app {app / 1e6:.1f} MB, {self.app_bytes / 1e6:.1f} after the warm-up; "
            f"workers {worker / 1e6:.1f} MB, {self.worker_bytes / 1e6:.1f} after the warm-up"
        )

    def _worker_bytes(self) -> int:
        """Of all workers together; 0 for one that has just ended."""
        total = 0
        for worker in self._world.app.workers():
            try:
                total += private_bytes(worker)
            except (psutil.Error, OSError):
                continue
        return total

    def _nothing_written(self) -> None:
        written = [path for path in _around(self._world.folder) if CANARY in path.name]
        if written:
            raise Failure(f"something hostile was written: {written}")


def _around(folder: Path) -> list[Path]:
    return [*folder.glob("*"), *folder.glob("home/*"), *folder.glob("home/*/*"), *Path("/tmp").glob(f"{CANARY}*")]
