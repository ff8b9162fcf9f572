"""Process that owns a history: `python -m tests.engine.history.owner FILE`. It saves trials until its input ends."""

import select
import sys
from pathlib import Path

from engine.history import History
from tests.engine.history.trial_maker import make_trial

CANDIDATES = 8
NUM_STEPS = 6


def main() -> None:
    """Save one trial after another, and print the number of trials on disk after each."""
    with History.open(Path(sys.argv[1])) as history:
        num_kept = 0
        while not select.select([sys.stdin], [], [], 0)[0]:
            history.record(make_trial(NUM_STEPS, CANDIDATES)).result()
            num_kept += 1
            print(num_kept, flush=True)


if __name__ == "__main__":
    main()
