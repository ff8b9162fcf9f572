"""Progress of a run, with the remaining time estimated from the seconds of its turns so far."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, median

from engine.runs import RunStatus


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a run.

    done: samples taken, including those that no longer count; total: those taken or still to be taken. cell:
    configuration measured now, None where none is. left_s: seconds until the end of the run, None where not known yet.
    turn_left_s: seconds until the current sample ends, 0 between samples. message: the current activity, or a remark on
    the run.
    """

    done: int
    total: int
    cell: int | None
    left_s: float | None
    turn_left_s: float | None
    status: RunStatus
    message: str


class TurnTimes:
    """Seconds of turns by configuration: loading, warm-up and the sample together.

    expected_s: seconds of a turn once its configuration is loaded, by configuration, as guessed before the run. They
    are corrected by measured turns, so that a run that begins with loads does not look many times as long as it is.
    """

    def __init__(self, expected_s: Mapping[int, float] | None = None) -> None:
        self._expected = dict(expected_s or {})
        self._seconds: dict[int, list[float]] = defaultdict(list)

    def add(self, cell: int, seconds: float) -> None:
        """Record one turn."""
        self._seconds[cell].append(seconds)

    def left_s(self, cells: Iterable[int]) -> float | None:
        """Return the seconds that one turn of each of `cells` will take; None while nothing is known.

        A configuration counts with its own mean without its first turn, which loads workers that may stay loaded.
        Others count as expected, times the median ratio of measured to expected turns; without an expectation with
        their first turn, and those not yet measured with the median of all.
        """
        wanted = list(cells)
        again = {cell: fmean(seconds[1:]) for cell, seconds in self._seconds.items() if len(seconds) > 1}
        if all(cell in again or cell in self._expected for cell in wanted):
            ratios = [seconds / self._expected[cell] for cell, seconds in again.items() if cell in self._expected]
            correction = median(ratios) if ratios else 1.0
            return sum(again[cell] if cell in again else correction * self._expected[cell] for cell in wanted)
        if not self._seconds:
            return None
        usual = {cell: again.get(cell, seconds[0]) for cell, seconds in self._seconds.items()}
        typical = median(usual.values())
        return sum(usual.get(cell, typical) for cell in wanted)
