"""Two programs on one history: a second workbench and commands beside the app, ended at any moment."""

import json
import os
import random
import signal
import subprocess
import sys

from tests.e2e.conftest import ROOT, Server
from tests.faults.app import STARTS_WITHIN_S, until
from tests.faults.failure import Failure
from tests.faults.page import Page
from tests.faults.world import World

COMMAND_WITHIN_S = 60


def second_workbench(world: World, draw: random.Random) -> None:
    """A second app opens the same history: it says whose it is and runs trials unsaved; the first loses nothing."""
    world.doing = "a second workbench on the same history"
    first_log = (world.home.path / "server.log").read_bytes()
    second = Server(world.home.path)
    world.app.others.add(second.process.pid)
    try:
        second.wait(STARTS_WITHIN_S)
        with Page(second.url, most_s=STARTS_WITHIN_S) as page:
            if not any(f"process {world.app.process.pid}" in error for error in page.errors()):
                raise Failure(f"it does not say that process {world.app.process.pid} has the history: {page.errors()}")
        with Page(second.url, draw.choice(("history", "benchmark", "compare"))):
            pass
        with world.streaming(draw, 1):
            pass
    finally:
        if draw.random() < 0.5:
            second.process.kill()
        else:
            second.process.terminate()
        try:
            second.process.wait(COMMAND_WITHIN_S)
        except subprocess.TimeoutExpired:
            second.process.kill()
            raise Failure("the second workbench did not end") from None
        finally:
            (world.home.path / "server.log").write_bytes(first_log)


def command_beside(world: World, draw: random.Random) -> None:
    """A command of the terminal keeps a trial while the app has the history: it arrives through the inbox."""
    is_killed = draw.random() < 0.5
    prompt = f"Once upon a time, {draw.getrandbits(40):x}"
    world.doing = f"a command beside the app, {'killed' if is_killed else 'to its end'}"
    process = _command(world, "generate", "--prompt", prompt, "--max-tokens", "8")
    if is_killed:
        try:
            process.wait(draw.uniform(0.2, 4))
        except subprocess.TimeoutExpired:
            process.kill()
    _end(process)
    if process.returncode not in (0, -signal.SIGKILL):
        raise Failure(f"the command ended with {process.returncode}")
    until(
        lambda: not list((world.home.path / "inbox").glob("*.trial")), "what the command kept stayed in the inbox", 20
    )
    listed = _command(world, "history", "list", "--kind", "trials", "--text", prompt, "--json")
    kept = [row["id"] for row in json.loads(_end(listed))["rows"]]
    if len(kept) != 1 and not (is_killed and not kept):
        raise Failure(f"the command kept {len(kept)} trials")
    world.ended += kept


def _command(world: World, *words: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "LOGITBENCH_HOME": str(world.home.path), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "engine", *words],
        env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    world.app.others.add(process.pid)
    return process


def _end(process: "subprocess.Popen[str]") -> str:
    """What it prints until it ends by itself."""
    try:
        out, said = process.communicate(timeout=COMMAND_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise Failure("the command did not end") from None
    if "Traceback" in said:
        raise Failure(f"the command ended in a traceback: {said[-400:]}")
    return out
