"""kill -9 and SIGSTOP: of a worker, of a child of any kind, of the app itself, while trials stream."""

import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from tests.faults import begun
from tests.faults.app import until
from tests.faults.failure import Failure
from tests.faults.killed_writer import crash_once
from tests.faults.world import World


def kill_worker(world: World, draw: random.Random) -> None:
    """A worker dies while trials stream: each of them ends in words, and the pool is whole again."""
    _hit_worker(world, draw, psutil.Process.kill)


def stop_worker(world: World, draw: random.Random) -> None:
    """A worker stands still, as under a debugger: it is noticed, its trials end in words, another takes its place."""
    _hit_worker(world, draw, psutil.Process.suspend)


def kill_child(world: World, draw: random.Random) -> None:
    """Any process under the app dies while the app uses it; what it was for ends in words."""
    with world.streaming(draw, 2) as trials:
        what, finish = begun.begin(world, draw)
        world.doing = f"kill a child while {what}"
        time.sleep(draw.uniform(0, 0.4))
        workers = {one.pid for one in world.app.workers()}
        children = world.app.children()
        with suppress(psutil.NoSuchProcess):
            draw.choice([one for one in children if one.pid not in workers] or children).kill()
        finish()
    for trial in trials:
        world.ending(trial)


def kill_app(world: World, draw: random.Random) -> None:
    """The app dies at any moment; started again, it has every acknowledged row."""
    with suppress(Interrupted), world.streaming(draw):
        what, _ = begun.begin(world, draw)
        world.doing = f"kill the app while {what}"
        time.sleep(draw.uniform(0, 0.5))
        world.app.kill()
        raise Interrupted
    _start_again(world)


def end_app(world: World, draw: random.Random) -> None:
    """SIGTERM or Ctrl+C at any moment: everything ends in time, and what had ended well is kept."""
    number = draw.choice((signal.SIGTERM, signal.SIGINT))
    with suppress(Interrupted), world.streaming(draw):
        what, _ = begun.begin(world, draw)
        world.doing = f"{number.name} while {what}"
        time.sleep(draw.uniform(0, 0.5))
        world.app.end(number)
        raise Interrupted
    _start_again(world)


def kill_writer(world: World, draw: random.Random) -> None:
    """A process that only writes a history dies twice on the same file; every row is whole, sample by sample."""
    with TemporaryDirectory() as folder:
        for seed in (draw.randrange(1 << 30), draw.randrange(1 << 30)):
            world.doing = f"kill a process that writes, seed {seed}"
            crash = crash_once(Path(folder, "history.duckdb"), seed=seed)
            if crash.wrong:
                raise Failure(crash.wrong)


class Interrupted(Exception):
    """The app is gone: nothing of what streamed is to be stopped."""


def _start_again(world: World) -> None:
    world.down()
    world.ledger.find_all(world.home.path)
    world.start()


def _hit_worker(world: World, draw: random.Random, hit: Callable[[psutil.Process], None]) -> None:
    with world.streaming(draw) as trials:
        world.doing = f"{hit.__name__} a worker with {len(trials)} trials"
        time.sleep(draw.uniform(0, 0.3))
        victim = draw.choice(world.app.workers())
        hit(victim)
        if not trials:
            # An idle worker that stands still is found out by the next trial, which may fail.
            world.ending(world.begin_trial(draw))
        until(lambda: not _is_worker(world, victim), f"worker {victim.pid} was not replaced")
    for trial in trials:
        world.ending(trial)
    until(world.app.workers, "the pool has no worker")


def _is_worker(world: World, process: psutil.Process) -> bool:
    return process.pid in {one.pid for one in world.app.workers()}
