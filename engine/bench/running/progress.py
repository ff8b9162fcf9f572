"""How far a run is, and how long it will take, judged by the seconds that its turns have taken so far."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, median

from engine.runs import RunStatus


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a run: samples taken, also those that count no longer; all that are taken or still to be taken.

    cell: measured now, None where none is. left_s: seconds until the end of the run, None where not known yet.
    turn_left_s: seconds until the current sample ends, 0 between samples. message: what is being done, or what the
    run has to say of itself.
    """

    done: int
    total: int
    cell: int | None
    left_s: float | None
    turn_left_s: float | None
    status: RunStatus
    message: str


class TurnTimes:
    """Seconds that turns took, by cell: loading, warming up and the sample together."""

    def __init__(self) -> None:
        self._seconds: dict[int, list[float]] = defaultdict(list)

    def add(self, cell: int, seconds: float) -> None:
        """Note one turn."""
        self._seconds[cell].append(seconds)

    def left_s(self, cells: Iterable[int]) -> float | None:
        """Seconds that one turn of each of `cells` will take; None while no turn has been measured.

        A cell counts with its own mean without its first turn, which loads what may stay loaded; one that was measured
        once with that turn; one not yet measured with the median of those.
        """
        if not self._seconds:
            return None
        usual = {cell: fmean(seconds[1:] or seconds) for cell, seconds in self._seconds.items()}
        typical = median(usual.values())
        return sum(usual.get(cell, typical) for cell in cells)
