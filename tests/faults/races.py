"""Races: several tabs start, stop, delete, restore, close and look at the same things at the same moment."""

import random
from concurrent.futures import ThreadPoolExecutor

from tests.faults.app import until
from tests.faults.page import Page
from tests.faults.world import LONG, RECORDED_TOP_K, SHORT, World

NUM_TABS = 4
STEPS = 6


def race(world: World, draw: random.Random) -> None:
    """Every tab does a drawn sequence of things at once; none may see a traceback, hang, or lose another's rows."""
    tabs = [Page(world.app.url) for _ in range(NUM_TABS)]
    shared = world.begin_trial(draw)
    world.ending(shared)
    world.ended.remove(shared)
    world.ledger.forget(shared)
    plans = [[draw.choice(ACTS) for _ in range(STEPS)] for _ in tabs]
    seeds = [draw.randrange(1 << 30) for _ in tabs]
    world.doing = f"race {plans}"
    try:
        with ThreadPoolExecutor(NUM_TABS) as threads:
            done = [
                threads.submit(_act, world, page, plan, shared, random.Random(seed))
                for page, plan, seed in zip(tabs, plans, seeds, strict=True)
            ]
        kept = [trial for one in done for trial in one.result()]
    finally:
        for page in tabs:
            page.close()
    for trial in kept:
        world.ending(trial)


def _act(world: World, page: Page, plan: list[str], shared: str, draw: random.Random) -> list[str]:
    """Do what the plan says in one tab; gives the trials it started, which all must be kept."""
    started = []
    for what in plan:
        if what == "run" or what == "run long":
            page.go_to("")
            _stop(page)
            page.fill(lab_max_tokens=SHORT if what == "run" else LONG, lab_recorded=RECORDED_TOP_K)
            page.press("do_run")
            started.append(page.trial)
        elif what == "stop":
            page.rerun()
            _stop(page)
        elif what == "look":
            page.go_to(draw.choice(("history", "compare", "models")))
        elif what == "leave":
            page.reopen()
        else:
            page.go_to("", f"trial={shared}")
            # Another tab may have deleted it, or brought it back, just before.
            button = "lab_delete" if what == "delete" else "lab_undo"
            if page.find(button) is not None:
                page.press(button)
    page.go_to("")
    _stop(page)
    return started


def _stop(page: Page) -> None:
    """Stop what runs in the tab; it may have ended of itself in the meantime."""
    if page.find("do_stop") is not None:
        page.press("do_stop")

        def is_idle() -> bool:
            page.rerun()
            return page.find("do_run") is not None

        until(is_idle, "a stopped trial did not end")


ACTS = ("run", "run long", "stop", "look", "leave", "delete", "restore")
