"""The app with work in progress: as `python -m streamlit`, and a thread that does what BUSY_WITH names.

The thread writes the file `busy` in the home folder once that goes on. Another one keeps trials all the time, and adds
the id of each to the file `acknowledged` when the history has it.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from streamlit.web import cli

from engine import workbench
from engine.bench.planning.plan import Plan
from engine.errors import EngineError
from engine.history.archives.pieces import ArchivePieces
from engine.specs import Request
from engine.workbench import Workbench
from engine.workbench.trials import Draft
from tests.engine.history.run_maker import make_run
from tests.engine.history.trial_maker import make_trial


def stream(bench: Workbench) -> str:
    """A trial that writes for minutes; gives its id."""
    return bench.trials.submit(Draft("Once", request=Request(max_tokens=400))).id


def benchmark(bench: Workbench) -> str:
    """A benchmark of minutes."""
    return bench.bench.start(Plan(model=str(bench.settings.model), axes={"layout": ("1x1",)}, rounds=50))


def sql(bench: Workbench) -> str:
    """A statement that never ends of itself, and whose planning cannot be interrupted."""
    parts = ", ".join(f"c{n} AS (SELECT * FROM c{n - 1} a, c{n - 1} b)" for n in range(1, 24))
    statement = f"WITH c0 AS (SELECT 1 AS x), {parts} SELECT count(*) FROM c23"
    assert bench.history is not None
    bench.history.console.run("SELECT 1")
    threading.Thread(target=bench.history.console.run, args=(statement,), kwargs={"timeout_s": 60.0}).start()
    return statement


def arrival(bench: Workbench) -> str:
    """A large archive on its way into the history."""
    assert bench.history is not None
    data = b"".join(ArchivePieces(bench.history))
    for run in bench.history.runs.recent():
        bench.history.runs.delete(run.id)
    bench.history.gc()
    bench.importing.take_in(bench.history, "large.zip", data)
    return f"{len(data)} bytes"


def embedding(bench: Workbench) -> str:
    """An embedding model that loads, and texts that wait for it."""
    bench.embedding.embed(tuple(f"text {number}" for number in range(20_000)))
    return "20,000 texts"


def download(bench: Workbench) -> str:
    """A history that is large enough to be read slowly."""
    return "a history"


WORK: dict[str, Callable[[Workbench], str]] = {
    each.__name__: each for each in (stream, benchmark, sql, arrival, embedding, download)
}


def begin() -> None:
    """Wait for the workbench and its model, then do what is asked."""
    bench = workbench.current()
    while bench.model.is_loading:
        time.sleep(0.05)
    assert bench.history is not None
    for _ in range(4):
        bench.history.runs.keep(make_run(60_000, 3))
    said = WORK[os.environ["BUSY_WITH"]](bench)
    home = bench.settings.home
    (home / "acknowledged").touch()
    threading.Thread(target=keep_trials, args=(bench, home / "acknowledged"), daemon=True).start()
    (home / "busy.partial").write_text(said)
    (home / "busy.partial").rename(home / "busy")


def keep_trials(bench: Workbench, path: Path) -> None:
    """Keep trials until the history is closed."""
    with path.open("a") as acknowledged, suppress(EngineError):
        while bench.history is not None:
            trial = make_trial(20, 4)
            bench.history.record(trial).result()
            print(trial.id, file=acknowledged, flush=True)


if __name__ == "__main__":
    threading.Thread(target=begin, daemon=True).start()
    cli.main(prog_name="streamlit")
