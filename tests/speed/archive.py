"""A long history out as one archive and in again elsewhere: how long it takes, and memory beyond an open history."""

import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.speed.common import MODELS, Row, output_of
from tests.speed.long_history import NUM_RUNS, NUM_TRIALS, long_history

ROUNDS = 1
SHAPE = ""

MOVE = """
import json, resource, sys, time
from pathlib import Path
from engine.history import History, export_history, import_archive
from engine.history.archives.pieces import ArchivePieces

what, archive = sys.argv[2], Path(sys.argv[3])
with History.open(Path(sys.argv[1])) as history:
    before, began, found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter(), None
    if what == "export":
        export_history(history, archive)
    elif what == "download":
        found = sum(map(len, ArchivePieces(history)))
    else:
        imported = import_archive(history, archive)
        found = [imported.num_runs, imported.num_trials]
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "bytes": 1024 * (after - before), "found": found}))
"""


def measure(num_rounds: int = ROUNDS, shape: str = SHAPE) -> list[Row]:
    """Each once, in a process of its own; there are no shapes here."""
    with TemporaryDirectory(dir=MODELS) as folder:
        here, there, archive = (Path(folder) / name for name in ("here.duckdb", "there.duckdb", "history.zip"))
        shutil.copy(long_history(), here)
        rows = _rows("whole history to a file", _move(here, "export", archive))
        rows += _rows("whole history as a download", _move(here, "download", archive))
        taken = _move(there, "import", archive)
        if taken["found"] != [NUM_RUNS, NUM_TRIALS]:
            raise SystemExit(f"The archive held {taken['found']} runs and trials.")
        size = f"an archive of {archive.stat().st_size / 1e6:,.0f} MB"
        return [*rows, *_rows("whole history taken in elsewhere", taken, size)]


def _move(history: Path, what: str, archive: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output_of([sys.executable, "-c", MOVE, str(history), what, str(archive)]))
    return found


def _rows(name: str, taken: dict[str, Any], beside: str = "") -> list[Row]:
    return [
        Row(name, taken["seconds"], "s", beside=beside),
        Row(f"{name}: memory", taken["bytes"] / 1e6, "MB", beside="most at any time, beyond an open history"),
    ]
