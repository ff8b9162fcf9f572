"""Our speed beside the peers', as one table and one JSON file: `make speed`.

    python -m tests.speed                        everything, about two hours on 2 cores
    python -m tests.speed single vocabulary      some of it
    python -m tests.speed many --rounds 3        fewer rounds: wider intervals

Have the machine to yourself: whatever else runs is measured too.
"""

import argparse
import json
import os
import platform
import sys
import time
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from tests.speed.common import MODELS, Row

PROGRAMS = (
    "single",
    "many",
    "layout",
    "crowds",
    "vocabulary",
    "xray",
    "sliders",
    "branches",
    "prefix",
    "memory",
    "fit",
    "cpu",
    "joining",
    "browser",
    "long_trial",
    "pages",
    "verdicts",
    "agreement",
    "tuning",
    "history",
    "meaning",
    "archive",
    "appending",
    "library",
    "embedding",
    "company",
    "serving",
    "served",
    "guidellm",
    "harness",
    "traffic",
    "cluster",
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.speed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--rounds", type=int, help="instead of each program's own number")
    parser.add_argument("--shape", help="another synthetic model, for a quick try; tiny is the smallest")
    given = parser.parse_args()
    unknown = [name for name in given.programs if name not in PROGRAMS]
    if unknown:
        parser.error(f"unknown program {unknown[0]}; known: {', '.join(PROGRAMS)}")

    rows: list[Row] = []
    for name in given.programs or PROGRAMS:
        print(f"{name} …", file=sys.stderr, flush=True)
        began = time.monotonic()
        part = import_module(f"tests.speed.{name}")
        rows += part.measure(given.rounds or part.ROUNDS, given.shape or part.SHAPE)
        print(f"{name}: {time.monotonic() - began:.0f} s            ", file=sys.stderr, flush=True)
        path = write(rows)
    print(table(rows))
    print(f"\n{path}")
    return 0 if all(row.is_reached in (True, None) for row in rows) else 1


def table(rows: list[Row]) -> str:
    """The lines, aligned."""
    cells = [("figure", "measured", "goal", "", "beside it")]
    for row in rows:
        verdict = {True: "yes", False: "NO", None: ""}[row.is_reached]
        digits = 3 if row.unit == "x" else 2 if row.unit == "ms" and row.value < 1 else 1
        cells.append((row.figure, f"{row.value:,.{digits}f} {row.unit}", row.goal, verdict, row.beside))
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def write(rows: list[Row]) -> Path:
    """All that is known so far, with the machine it was measured on."""
    MODELS.mkdir(parents=True, exist_ok=True)
    path = MODELS / f"speed-{STARTED:%Y%m%d-%H%M%S}.json"
    machine = {
        "cpu": cpu(),
        "num_cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "llama-cpp-python": version("llama-cpp-python"),
    }
    record = {"started": STARTED.isoformat(), "machine": machine, "rows": [row.to_dict() for row in rows]}
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return path


def cpu() -> str:
    """The processor's own name, empty where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


STARTED = datetime.now(UTC)

if __name__ == "__main__":
    sys.exit(main())
