"""What adaptive threads lose against the better fixed number, on machines in numbers: the table of decision 0002.

python -m tests.simulations.threads
"""

import argparse
from functools import partial

from tests.engine.llama.machine_model import Kind, Machine
from tests.engine.llama.test_thread_controller import (
    SEEDS,
    SEES,
    TWO_CORES,
    UNTIL_S,
    Load,
    adaptive,
    busy,
    fixed_rate,
    nobody,
    share_of_better,
)

BURSTS = ((10, 0.2), (4, 0.5), (2, 0.1), (1, 0.5), (0.4, 0.5), (0.05, 0.3))
STEP_S = 0.1


def in_bursts(period_s: float, part: float, now: float) -> float:
    """One busy process for a part of every period."""
    return float(now % period_s < part * period_s)


def side_by_side(kind: Kind, sees: str, seed: int) -> float:
    """The slower of two, over two with one thread."""
    both = [adaptive(kind, seed=seed), adaptive(kind, seed=seed + 100)]
    Machine(2, both, sees=sees, seed=seed).run(UNTIL_S)
    return min(one.per_s(0, UNTIL_S) for one in both) / fixed_rate(kind, 1, nobody, seed=seed, num_programs=2)


def back_s(kind: Kind, sees: str, seed: int) -> float:
    """Seconds from the end of 10 s of company until half a second at 0.95 of the full speed begins."""
    one = adaptive(kind, seed=seed)
    Machine(2, [one], _for_ten_seconds, sees=sees, seed=seed).run(30)
    full = fixed_rate(kind, 2, nobody, seed=seed)
    steps = (step * STEP_S for step in range(120))
    return next(after for after in steps if one.per_s(15 + after, 15.5 + after) >= 0.95 * full)


def _for_ten_seconds(now: float) -> float:
    return float(5 <= now < 15)


def main() -> None:
    """Print the lowest of the seeds, and the longest time."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    cases: dict[str, Load] = {"alone": nobody, "beside a busy process": busy}
    cases |= {f"company for {part:.0%} of {period:g} s": partial(in_bursts, period, part) for period, part in BURSTS}
    columns = [(model, sees) for sees in SEES for model in TWO_CORES]
    print(f"{'':<28}" + "".join(f"{model + ', ' + sees:>14}" for model, sees in columns))
    for name, load in cases.items():
        _print(name, [min(share_of_better(TWO_CORES[m], load, sees=s, seed=n) for n in SEEDS) for m, s in columns])
    _print("side by side", [min(side_by_side(TWO_CORES[m], s, seed) for seed in SEEDS) for m, s in columns])
    _print("full speed back after, s", [max(back_s(TWO_CORES[m], s, seed) for seed in SEEDS) for m, s in columns])


def _print(name: str, figures: list[float]) -> None:
    print(f"{name:<28}" + "".join(f"{figure:>14.3f}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
