"""Which cell is measured next: the protocol that a run follows, and the fixed schedule with its anchor."""

from collections import Counter, deque
from collections.abc import Collection, Sequence
from statistics import median
from typing import Protocol

import numpy as np

from engine.bench.planning.plan import PlannedCell
from engine.bench.planning.schedule import MOST_REPEATS, Turn
from engine.samples import Samples
from engine.units import change, counted

ALLOWED_DRIFT = 0.10
"""Part of its median by which the anchor may deviate before what was measured since is measured again."""

SPEEDS = ("tokens_per_s", "prefill_per_s", "sentences_per_s", "requests_per_s", "end_to_end_per_s")
"""What may tell the speed of the machine: the first that a sample has."""


class Strategy(Protocol):
    """Decides from the samples so far; `out` are cells that will not be measured any more."""

    def next(self, samples: Samples, out: Collection[int]) -> Turn | None:
        """The turn to take now, each given once; None at the end."""

    def asked(self, turn: Turn) -> PlannedCell:
        """The cell of a turn, with what it is asked in that turn."""

    def review(self, samples: Samples) -> list[int]:
        """After a sample: positions of those that count no longer because they are measured again."""

    def ahead(self, samples: Samples, out: Collection[int]) -> list[int]:
        """Cells of the turns still to come, as far as can be foreseen."""

    @property
    def says(self) -> str:
        """What a reader of the run must know about how it was measured; empty when nothing."""


class Rounds:
    """A fixed order of turns, less those that `samples` of an earlier part of the run already fill.

    When a measurement of the anchor deviates by more than ALLOWED_DRIFT from the median of those before, everything
    since the last good one is measured again. After MOST_REPEATS times the machine has changed rather than stumbled:
    what was measured then counts, later anchors are compared with the new speed, and `says` tells of it.
    """

    def __init__(self, turns: Sequence[Turn], cells: Sequence[PlannedCell], samples: Samples) -> None:
        self._cells = cells
        self._turns = deque(_open(turns, samples))
        anchors = samples[samples["is_anchor"] & ~samples["is_replaced"]]
        self._anchors = [speed for sample in anchors if (speed := speed_of(sample)) is not None]
        self._good_until = int(anchors["position"].max(initial=-1))
        self._num_repeats = 0
        self._changes: list[float] = []
        self._repeats = ""

    def next(self, samples: Samples, out: Collection[int]) -> Turn | None:
        """The first turn left whose cell is still in."""
        while self._turns:
            turn = self._turns.popleft()
            if turn.cell not in out:
                return turn
        return None

    def asked(self, turn: Turn) -> PlannedCell:
        """The cell as it is."""
        return self._cells[turn.cell]

    def ahead(self, samples: Samples, out: Collection[int]) -> list[int]:
        """Cells of the turns left."""
        return [turn.cell for turn in self._turns if turn.cell not in out]

    def review(self, samples: Samples) -> list[int]:
        """Positions back to the last good anchor when the newest sample is an anchor that drifted."""
        newest = samples[-1]
        speed = speed_of(newest)
        if not newest["is_anchor"] or speed is None:
            return []
        drift = speed / median(self._anchors) - 1 if self._anchors else 0.0
        if abs(drift) <= ALLOWED_DRIFT:
            self._accept(newest, speed)
            return []
        if self._num_repeats == MOST_REPEATS:
            self._changes.append(drift)
            self._anchors.clear()
            self._accept(newest, speed)
            return []
        self._num_repeats += 1
        since = samples[(samples["position"] > self._good_until) & ~samples["is_replaced"]]
        self._turns.extendleft(reversed([_turn_of(sample) for sample in since]))
        num_again = counted(len(since), "sample")
        self._repeats = f"{num_again} measured again: the machine's speed changed by {change(drift)}"
        return [int(position) for position in since["position"]]

    def _accept(self, anchor: np.void, speed: float) -> None:
        self._anchors.append(speed)
        self._good_until = int(anchor["position"])
        self._num_repeats = 0

    @property
    def says(self) -> str:
        """What is measured again just now; else how often and by how much the machine changed its speed for good."""
        if self._num_repeats:
            return self._repeats
        if not self._changes:
            return ""
        changes = ", ".join(map(change, self._changes))
        return (
            f"The machine itself changed its speed while this was measured: the anchor cell by {changes}, "
            f"{MOST_REPEATS + 1} times in a row. Cells compared by rounds are sound; a single figure depends on when."
        )


def speed_of(sample: np.void) -> float | None:
    """The first of SPEEDS that a sample has."""
    return next((float(sample[name]) for name in SPEEDS if sample[name] > 0), None)


def _open(turns: Sequence[Turn], samples: Samples) -> list[Turn]:
    """Turns that no counted sample fills, in their order."""
    filled = Counter(_turn_of(sample) for sample in samples[~samples["is_replaced"]])
    left = []
    for turn in turns:
        if filled[turn]:
            filled[turn] -= 1
        else:
            left.append(turn)
    return left


def _turn_of(sample: np.void) -> Turn:
    return Turn(int(sample["cell"]), int(sample["round"]), bool(sample["is_anchor"]))
