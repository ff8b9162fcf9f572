"""python -m tests.fuzz: gives every parser of foreign input changed valid input, and looks what comes of it.

Only an EngineError may come, within 5 s and 1 GiB. An input is always the same for a name, a seed and a number.
"""

import argparse
import sys
import time

from tests.fuzz.parsers import PARSERS
from tests.fuzz.running import MEASURED, Failure, bound_memory, tried

MOST_CHARACTERS = 10


def main() -> int:
    """Fuzz the parsers asked for, one after the other; 1 where one failed."""
    asked = _arguments()
    bound_memory()
    if asked.number is not None:
        failure = tried(asked.names[0], asked.seed, asked.number, is_traced=True)
        print(failure or "nothing is wrong")
        return int(failure is not None)
    return int(sum(_fuzz(name, asked.seed, asked.minutes * 60) for name in asked.names or PARSERS) > 0)


def _fuzz(name: str, seed: int, seconds: float) -> int:
    """How many inputs failed within so many seconds, those of the same kind counted once."""
    began, number = time.monotonic(), 0
    found: dict[str, Failure] = {}
    while time.monotonic() - began < seconds:
        failure = tried(name, seed, number, is_traced=number % MEASURED == 0)
        if failure is not None and found.setdefault(failure.what, failure) is failure and len(found) <= MOST_CHARACTERS:
            again = f"python -m tests.fuzz {name} --seed {seed} --number {number}"
            print(f"  {failure.what}\n    {again}\n    {failure.content[:200]!r}", flush=True)
        number += 1
    took = time.monotonic() - began
    print(f"{name:18} {number:9,} inputs {number / took:9,.0f}/s {len(found):4} kinds of failure", flush=True)
    return len(found)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PARSERS)} (default: all)")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each parser (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="what is drawn (default: 0)")
    parser.add_argument("--number", type=int, help="this one input, as a failure names it")
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in PARSERS]:
        parser.error(f"there is no parser {unknown[0]}")
    if asked.number is not None and len(asked.names) != 1:
        parser.error("--number needs one NAME")
    return asked


if __name__ == "__main__":
    sys.exit(main())
