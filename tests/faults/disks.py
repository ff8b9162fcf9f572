"""A full disk and a read-only folder: said in words, survived, and nothing lost."""

import random
import signal
from contextlib import AbstractContextManager, suppress

from tests.faults.app import until
from tests.faults.checks import PAGES
from tests.faults.failure import Failure
from tests.faults.ledger import exported
from tests.faults.world import LONG, SHORT, World


def full_disk(world: World, draw: random.Random) -> None:
    """No byte can be written for a while."""
    world.doing = "full disk"
    _without_writing(world, draw, world.home.full(world.app.process))


def read_only(world: World, draw: random.Random) -> None:
    """The folder of everything written cannot be written for a while."""
    world.doing = "read-only folder"
    _without_writing(world, draw, world.home.read_only())


def _without_writing(world: World, draw: random.Random, disk: AbstractContextManager[None]) -> None:
    """Trials run and pages are drawn meanwhile. Afterwards the history works again, by itself or after a restart that
    the page asks for."""
    with disk:
        for _ in range(draw.randint(1, 3)):
            end = world.ending(world.begin_trial(draw, draw.choice((SHORT, LONG // 8))))
            if end.get("error"):
                raise Failure(f"a trial failed: {end['error']}")
        for name in draw.sample(PAGES, 2):
            world.tab().go_to(name)
        with suppress(Failure):
            _paste_and_take(world, draw)
    # What could not be written then may be there or not.
    world.ended.clear()
    trial = world.begin_trial(draw)
    world.ending(trial)
    page = world.tab()
    page.go_to("")
    if page.errors():
        world.doing += f"; the page then says {page.errors()[0][:120]!r}, restarted"
        world.app.end(signal.SIGTERM)
        world.down()
        world.ledger.find_all(world.home.path)
        world.start()
        return
    link = world.history_link()
    until(lambda: exported(world.app.url, link, [trial]), "with room again, a trial was not kept and no page says why")


def _paste_and_take(world: World, draw: random.Random) -> None:
    page = world.tab()
    page.go_to("history", "view=runs")
    page.fill(history_pasted=f"{draw.randint(10, 999)} tokens in {draw.randint(2, 99)}s")
    page.press("history_take_in")
