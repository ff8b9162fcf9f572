"""Strategies of a run: the protocol that decides the next turn, and the fixed schedule with its control."""

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
"""Fraction of its median by which the control may deviate before the samples since then are measured again."""

SPEEDS = ("tokens_per_s", "prefill_per_s", "sentences_per_s", "requests_per_s", "end_to_end_per_s")
"""Metrics that can measure the machine's speed: the first that a sample has is used."""


class Strategy(Protocol):
    """Protocol that decides each turn from the samples so far; `out` are configurations no longer measured."""

    def next(self, samples: Samples, out: Collection[int]) -> Turn | None:
        """Return the turn to take now, each given once; None at the end."""

    def asked(self, turn: Turn) -> PlannedCell:
        """Return the configuration of a turn, with its requests in that turn."""

    def review(self, samples: Samples) -> list[int]:
        """Return after a sample the positions of those that no longer count because they are measured again."""

    def ahead(self, samples: Samples, out: Collection[int]) -> list[int]:
        """Return the configurations of the turns still to come, as far as foreseeable."""

    @property
    def left_s(self) -> float | None:
        """Seconds left of the time that the strategy may take; None where its turns decide when it ends."""

    @property
    def says(self) -> str:
        """Remark on how the run was measured that a reader must know; empty without one."""


class Rounds:
    """Fixed order of turns, less those that `samples` of an earlier part of the run already fill.

    When a sample of the control deviates by more than ALLOWED_DRIFT from the median of those before, everything since
    the last good one is measured again. After `most_repeats` times the machine has changed rather than stumbled: the
    samples taken then count, later ones of the control are compared with the new speed, and `says` reports it.
    """

    def __init__(
        self,
        turns: Sequence[Turn],
        cells: Sequence[PlannedCell],
        samples: Samples,
        *,
        most_repeats: int = MOST_REPEATS,
    ) -> None:
        self._cells, self._most_repeats = cells, most_repeats
        self._turns = deque(_open(turns, samples))
        anchors = samples[samples["is_anchor"] & ~samples["is_replaced"]]
        self._anchors = [speed for sample in anchors if (speed := speed_of(sample)) is not None]
        self._good_until = int(anchors["position"].max(initial=-1))
        self._num_repeats = 0
        self._changes: list[float] = []
        self._repeats = ""

    def next(self, samples: Samples, out: Collection[int]) -> Turn | None:
        """Return the first remaining turn whose configuration is still measured."""
        while self._turns:
            turn = self._turns.popleft()
            if turn.cell not in out:
                return turn
        return None

    def asked(self, turn: Turn) -> PlannedCell:
        """Return the configuration unchanged."""
        return self._cells[turn.cell]

    def ahead(self, samples: Samples, out: Collection[int]) -> list[int]:
        """Return the configurations of the remaining turns."""
        return [turn.cell for turn in self._turns if turn.cell not in out]

    def review(self, samples: Samples) -> list[int]:
        """Return the positions back to the last good control sample when the newest sample is a drifted control."""
        newest = samples[-1]
        speed = speed_of(newest)
        if not newest["is_anchor"] or speed is None:
            return []
        drift = speed / median(self._anchors) - 1 if self._anchors else 0.0
        if abs(drift) <= ALLOWED_DRIFT:
            self._accept(newest, speed)
            return []
        if self._num_repeats == self._most_repeats:
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
    def left_s(self) -> float | None:
        """None: it ends after the last of its turns."""
        return None

    @property
    def says(self) -> str:
        """Status: the current re-measurement, or persistent drift."""
        if self._num_repeats:
            return self._repeats
        if not self._changes:
            return ""
        changes = ", ".join(map(change, self._changes))
        if self._most_repeats:
            changes += f", {self._most_repeats + 1} times in a row"
        return (
            f"The machine's speed changed during the run: the control by {changes}. "
            "Comparisons within rounds remain valid; single figures depend on when they were measured."
        )


def speed_of(sample: np.void) -> float | None:
    """Return the first of SPEEDS that a sample has."""
    return next((float(sample[name]) for name in SPEEDS if sample[name] > 0), None)


def _open(turns: Sequence[Turn], samples: Samples) -> list[Turn]:
    """Return the turns that no counted sample fills, in their order."""
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
