"""python -m tests.faults: breaks a live workbench in every way known here, and looks what holds after each.

The real app is started as a person starts it, with a home of its own and the model that ships. Faults reach it by the
ways that a person, a web page or the system has: through its pages over Streamlit's own web socket (`page`: real
scripts, real callbacks, a tenth of a browser's time), through Chromium where markup might run (`browser`), through raw
sockets, files and signals. So nothing of the app is replaced, and no driver inside it is needed.
"""

import argparse
import sys
import time
from collections import Counter

from tests.faults.campaign import Campaign, Outcome
from tests.faults.kinds import KINDS

SHOWN_CHARACTERS = 160
"""How many characters of what a fault did are printed."""


def main() -> int:
    """Run the faults asked for and print a table; 1 where anything failed."""
    asked = _arguments()
    end = time.monotonic() + (asked.minutes * 60 if asked.minutes else 1e9)
    count = 1 if asked.step is not None else asked.count or (1 << 30 if asked.minutes else 60)
    campaign = Campaign(asked.seed, asked.only or list(KINDS), asked.step or 0)
    began = time.monotonic()
    outcomes: list[Outcome] = []
    try:
        for outcome in campaign.run(count, end):
            outcomes.append(outcome)
            _tell(asked.seed, outcome, len(outcomes), is_loud=asked.verbose)
    finally:
        print(_table(outcomes))
    took = (time.monotonic() - began) / 60
    print(f"\nseed {asked.seed}: {len(outcomes):,} faults in {took:.1f} minutes; {campaign.mechanism}")
    print(
        f"most memory above the warm-up, seconds after a fault: app {campaign.most_app_growth / 1e6:+.1f} MB, "
        f"workers {campaign.most_worker_growth / 1e6:+.1f} MB"
    )
    return int(any(outcome.failure for outcome in outcomes))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="what is drawn (default: 0)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--count", type=int, help="how many faults (default: 60)")
    length.add_argument("--minutes", type=float, help="how long")
    parser.add_argument("--only", action="append", choices=KINDS, metavar="KIND", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--step", type=int, help="this one fault of the kind of --only, as a failure names it")
    parser.add_argument("--verbose", action="store_true", help="a line for each fault")
    asked = parser.parse_args()
    if asked.step is not None and len(asked.only or ()) != 1:
        parser.error("--step needs one --only")
    return asked


def _tell(seed: int, outcome: Outcome, number: int, *, is_loud: bool) -> None:
    what = f"{outcome.kind:16} {outcome.number:4}  {outcome.elapsed_s:5.1f} s  {outcome.doing[:SHOWN_CHARACTERS]!r}"
    if outcome.failure:
        again = f"python -m tests.faults --seed {seed} --only {outcome.kind} --step {outcome.number}"
        print(f"FAILED {what}\n    {outcome.failure}\n    again: {again}", flush=True)
    elif is_loud:
        print(f"{number:6} {what}", flush=True)


def _table(outcomes: list[Outcome]) -> str:
    drawn, failed = Counter(one.kind for one in outcomes), Counter(one.kind for one in outcomes if one.failure)
    lines = [f"{'kind':20}{'drawn':>8}{'failed':>8}{'median s':>10}"]
    for kind in sorted(drawn):
        times = sorted(one.elapsed_s for one in outcomes if one.kind == kind)
        lines.append(f"{kind:20}{drawn[kind]:>8}{failed[kind]:>8}{times[len(times) // 2]:>10.1f}")
    lines.append(f"{'all':20}{len(outcomes):>8}{sum(failed.values()):>8}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
