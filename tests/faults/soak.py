"""python -m tests.faults.soak: ordinary use for hours, and whether memory, threads and handles stay level.

A person's day by script: trials, every page, searches, questions in SQL, imports, exports, deletions, benchmarks. Each
minute a line of figures goes into a CSV file; at the end each figure gets its slope, a 95 % interval for it (t, least
squares) and a verdict against a bound that is stated here. The app's memory is fitted on the length of the history's
write-ahead log too: rows that are not in the file yet are in memory, at most 16 MB of them, and come and go. Figures
are taken after a few seconds of rest: queries that run take tens of megabytes more, the longer the history the more.
"""

import argparse
import csv
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TextIO
from urllib.parse import urlencode

import numpy as np
import psutil
from scipy import stats

from tests.faults import begun
from tests.faults.app import adopt_orphans, end_in_order, private_bytes
from tests.faults.checks import PAGES, Checks
from tests.faults.failure import Failure
from tests.faults.world import SHORT, World

EVERY_S = 60.0
REST_S = 5.0
SETTLES_WITHIN_MIN = 12.0
"""Trials stay in memory for ten minutes and pages for two: before that a workbench in use grows."""

BOUNDS = {
    "app_mb": 12.0, "app_threads": 2.0, "app_handles": 6.0,
    "workers_mb": 1.0, "workers_threads": 1.0, "workers_handles": 1.0, "children": 1.0,
}  # fmt: skip
"""What each figure may gain in an hour and still count as level."""


class Slope(NamedTuple):
    """How much a figure gains in an hour, with its 95 % interval."""

    name: str
    per_hour: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """level: all of the interval is below the bound; growing: all of it is above; else longer use would tell."""
        bound = BOUNDS[self.name]
        if self.high <= bound:
            return "level"
        return "growing" if self.low > bound else "not known yet: use it for longer"


def main() -> int:
    """Use the workbench, print the slopes; 1 where a figure is growing or anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=120, help="how long (default: 120)")
    parser.add_argument("--seed", type=int, default=0, help="of what is done when (default: 0)")
    parser.add_argument("--csv", type=Path, default=Path("soak.csv"), help="where the figures go (default: soak.csv)")
    asked = parser.parse_args()
    adopt_orphans()
    end_in_order()
    with tempfile.TemporaryDirectory(prefix="logitbench-soak-") as folder, asked.csv.open("w", newline="") as file:
        (exported := Path(folder, "exported")).mkdir()
        world = World(Path(folder), exported)
        try:
            rows = list(_use(world, random.Random(asked.seed), asked.minutes, file))
        finally:
            world.close()
    settled = [row for row in rows if row["minute"] >= min(SETTLES_WITHIN_MIN, asked.minutes / 3)]
    slopes = [_slope(name, settled) for name in BOUNDS]
    print(_table(slopes, settled))
    print(f"{rows[-1]['done']:,.0f} things done, {rows[-1]['failed']:,.0f} failed")
    return int(any(slope.verdict == "growing" for slope in slopes) or rows[-1]["failed"] > 0)


def _use(world: World, draw: random.Random, minutes: float, file: TextIO) -> Iterator[dict[str, float]]:
    """Do one thing after another; a row of figures each minute."""
    world.start()
    Checks(world).warm_up(draw)
    writer = csv.DictWriter(file, ["minute", *BOUNDS, "log_mb", "done", "failed"])
    writer.writeheader()
    began, num_done, num_failed = time.monotonic(), 0, 0
    last = -EVERY_S
    while (now := time.monotonic() - began) < 60 * minutes:
        if now - last >= EVERY_S:
            last = now
            time.sleep(REST_S)
            row = {"minute": round(now / 60, 2), **_figures(world), "done": num_done, "failed": num_failed}
            writer.writerow(row)
            file.flush()
            print("  ".join(f"{name} {value:,.1f}" for name, value in row.items()), flush=True)
            yield row
        try:
            draw.choices([act for act, _ in ACTS], [weight for _, weight in ACTS])[0](world, draw)
            num_done += 1
        except Failure as failure:
            num_failed += 1
            print(f"FAILED {failure}", flush=True)


def _figures(world: World) -> dict[str, float]:
    app, workers = world.app.process, world.app.workers()
    return {
        "app_mb": private_bytes(app) / 1e6,
        "log_mb": log.stat().st_size / 1e6 if (log := Path(world.home.path, "history.duckdb.wal")).exists() else 0.0,
        "app_threads": app.num_threads(),
        "app_handles": app.num_fds(),
        "workers_mb": sum(map(private_bytes, workers)) / 1e6,
        "workers_threads": sum(map(psutil.Process.num_threads, workers)),
        "workers_handles": sum(map(psutil.Process.num_fds, workers)),
        "children": len(world.app.children()),
    }


def _slope(name: str, rows: list[dict[str, float]]) -> Slope:
    hours, figures = np.array([row["minute"] for row in rows]) / 60, np.array([row[name] for row in rows])
    causes = np.column_stack([hours, np.ones(len(rows))])
    if name == "app_mb" and np.ptp(log_mb := np.array([row["log_mb"] for row in rows])):
        causes = np.column_stack([causes, log_mb])
    if (freedom := len(rows) - causes.shape[1]) < 1:
        return Slope(name, np.nan, -np.inf, np.inf)
    effects, *_ = np.linalg.lstsq(causes, figures)
    variance = np.sum((figures - causes @ effects) ** 2) / freedom
    half = float(stats.t.ppf(0.975, freedom) * np.sqrt(variance * np.linalg.inv(causes.T @ causes)[0, 0]))
    return Slope(name, float(effects[0]), float(effects[0]) - half, float(effects[0]) + half)


def _table(slopes: list[Slope], rows: list[dict[str, float]]) -> str:
    lines = [f"{'figure':18}{'first':>9}{'last':>9}{'per hour':>10}  {'95 % interval':24}{'bound':>7}  verdict"]
    for slope in slopes:
        first, last = rows[0][slope.name], rows[-1][slope.name]
        interval = f"[{slope.low:+.1f}, {slope.high:+.1f}]"
        lines.append(
            f"{slope.name:18}{first:>9,.1f}{last:>9,.1f}{slope.per_hour:>+10.1f}  {interval:24}"
            f"{BOUNDS[slope.name]:>7,.0f}  {slope.verdict}"
        )
    return "\n".join(lines)


# what a person does


def _run(world: World, draw: random.Random) -> None:
    number = draw.randrange(3)
    world.ending(world.begin_trial(draw, draw.choice((SHORT, 60, 120)), number=number), most_s=60)


def _stop(world: World, draw: random.Random) -> None:
    with world.streaming(draw, 2):
        time.sleep(draw.uniform(0.1, 1))


def _look(world: World, draw: random.Random) -> None:
    world.tab(draw.randrange(3)).go_to(draw.choice((*PAGES, "embeddings")))


def _search(world: World, draw: random.Random) -> None:
    text = draw.choice(("king", "fox", "mill", "nothing at all"))
    world.tab().go_to("history", urlencode({"view": draw.choice(("trials", "runs")), "text": text}))


def _delete(world: World, draw: random.Random) -> None:
    if world.ended:
        trial, page = world.ended.pop(), world.tab(draw.randrange(3))
        page.go_to("", f"trial={trial}")
        page.press("lab_delete")
        if draw.random() < 0.7:
            page.press("lab_undo")


def _export(world: World, draw: random.Random) -> None:
    world.ledger.acknowledge(world.app.url, world.history_link(), world.ended[-5:], draw)
    world.ended.clear()


def _leave(world: World, draw: random.Random) -> None:
    world.lose_tab(draw.randrange(3))


def _begin(thing: Callable[[World, random.Random], begun.Finish]) -> Callable[[World, random.Random], None]:
    def act(world: World, draw: random.Random) -> None:
        finish = thing(world, draw)
        time.sleep(draw.uniform(0, 2))
        finish()

    return act


ACTS: tuple[tuple[Callable[[World, random.Random], None], float], ...] = (
    (_run, 30),
    (_stop, 6),
    (_look, 20),
    (_search, 8),
    (_delete, 4),
    (_export, 3),
    (_leave, 3),
    (_begin(begun.query), 5),
    (_begin(begun.taking_in), 3),
    (_begin(begun.benchmark), 0.5),
)


if __name__ == "__main__":
    sys.exit(main())
