"""A full disk and a read-only folder: said in words, survived, and nothing lost."""

import random
from contextlib import AbstractContextManager, suppress

from tests.faults.app import until
from tests.faults.checks import PAGES
from tests.faults.failure import Failure
from tests.faults.ledger import exported
from tests.faults.world import LONG, SHORT, World

CAUGHT_UP_WITHIN_S = 20.0
"""The workbench looks every five seconds whether its history works again."""


def full_disk(world: World, draw: random.Random) -> None:
    """No byte can be written for a while."""
    world.doing = "full disk"
    _without_writing(world, draw, world.home.full(world.app.process))


def read_only(world: World, draw: random.Random) -> None:
    """The folder of everything written cannot be written for a while."""
    world.doing = "read-only folder"
    _without_writing(world, draw, world.home.read_only())


def _without_writing(world: World, draw: random.Random, disk: AbstractContextManager[None]) -> None:
    """Trials run and pages are drawn meanwhile. Afterwards the history works again by itself and has what it missed."""
    with disk:
        for _ in range(draw.randint(1, 3)):
            end = world.ending(world.begin_trial(draw, draw.choice((SHORT, LONG // 8))))
            if end.get("error"):
                raise Failure(f"a trial failed: {end['error']}")
        for name in draw.sample(PAGES, 2):
            world.tab().go_to(name)
        with suppress(Failure):
            _paste_and_take(world, draw)
    world.ending(world.begin_trial(draw))
    until(lambda: not _missing(world), lambda: f"with room again, {_missing(world)} were not kept", CAUGHT_UP_WITHIN_S)
    page = world.tab()

    def is_calm() -> bool:
        page.go_to("")
        return not page.errors()

    until(is_calm, lambda: f"everything is kept, and the page still says {page.errors()}", CAUGHT_UP_WITHIN_S)


def _missing(world: World) -> set[str]:
    """Trials that ended well and are not in the history; all of them where it cannot be read yet."""
    found: set[str] = set()
    with suppress(Failure):
        found = exported(world.app.url, world.history_link(), world.ended)
    return set(world.ended) - found


def _paste_and_take(world: World, draw: random.Random) -> None:
    page = world.tab()
    page.go_to("history", "view=runs")
    page.fill(history_pasted=f"{draw.randint(10, 999)} tokens in {draw.randint(2, 99)}s")
    page.press("history_take_in")
