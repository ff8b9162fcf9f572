"""Draws faults by lot, one after another, and notes what did not hold.

A fault is drawn from its seed, its kind and its number within the kind, so that it can be drawn again alone.
"""

import random
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.faults import begun
from tests.faults.app import adopt_orphans, end_in_order
from tests.faults.checks import Checks
from tests.faults.failure import Failure
from tests.faults.kinds import KINDS
from tests.faults.world import World


class Outcome(NamedTuple):
    """One fault: its kind and number within the kind, what it did, seconds with all checks, what did not hold or ""."""

    kind: str
    number: int
    doing: str
    elapsed_s: float
    failure: str


class Campaign:
    """Faults of one seed against one workbench; after a failure a new one with a new home, so that failures stand
    alone."""

    def __init__(self, seed: int, kinds: list[str], first: int = 0) -> None:
        self.seed, self.mechanism = seed, ""
        self.most_app_growth = self.most_worker_growth = 0
        self._draw = random.Random(seed)
        self._kinds = kinds
        self._numbers = dict.fromkeys(kinds, first)
        self._world: World | None = None
        self._checks: Checks | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._exported = tempfile.TemporaryDirectory(prefix="logitbench-embedding-")
        adopt_orphans()
        end_in_order()

    def run(self, count: int, until: float) -> Iterator[Outcome]:
        """Up to `count` faults, none begun after the monotonic moment `until`."""
        weights = [KINDS[kind].weight for kind in self._kinds]
        try:
            for _ in range(count):
                if time.monotonic() > until:
                    return
                yield self._one(self._draw.choices(self._kinds, weights)[0])
        finally:
            self._close()
            self._exported.cleanup()

    def _one(self, kind: str) -> Outcome:
        number = self._numbers[kind]
        self._numbers[kind] += 1
        began, failure = time.monotonic(), ""
        try:
            world, checks = self._opened()
            began = time.monotonic()
            self._break(world, checks, kind, random.Random(f"{self.seed}/{kind}/{number}"))
        except Failure as error:
            failure = str(error)
        except Exception:
            failure = f"the fault itself could not be carried out:\n{traceback.format_exc()}"
        elapsed_s, doing = time.monotonic() - began, self._world.doing if self._world else "start"
        if failure:
            self._close()
        return Outcome(kind, number, doing, elapsed_s, failure)

    def _break(self, world: World, checks: Checks, kind: str, draw: random.Random) -> None:
        world.doing = kind
        url, end_company = world.app.url, begun.company(world, draw)
        KINDS[kind].fault(world, draw)
        doing, world.doing = world.doing, f"{world.doing}; then the checks"
        if world.app.url == url:
            end_company()
        checks.all(draw)
        world.doing = doing
        self.most_app_growth = max(self.most_app_growth, checks.most_app_bytes - checks.app_bytes)
        self.most_worker_growth = max(self.most_worker_growth, checks.most_worker_bytes - checks.worker_bytes)

    def _opened(self) -> tuple[World, Checks]:
        if self._world is None or self._checks is None:
            self._folder = tempfile.TemporaryDirectory(prefix="logitbench-faults-")
            self._world = World(Path(self._folder.name), Path(self._exported.name))
            self.mechanism = self._world.home.mechanism
            self._checks = Checks(self._world)
            self._world.start()
            self._checks.warm_up(random.Random(f"{self.seed}/warm-up"))
        return self._world, self._checks

    def _close(self) -> None:
        if self._world is not None:
            self._world.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._world = self._checks = self._folder = None
