"""Progress of a run, with the remaining time estimated from the seconds of its turns so far."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from engine.bench.planning.guesses import ExpectedTurn
from engine.runs import RunStatus
from engine.samples import Samples

_NOTHING = ExpectedTurn(0.0, 0.0, 0.0)


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

    expected: guesses by configuration, see ExpectedTurn. Measured turns correct them: samples the guesses for samples,
    first turns those for loading, so that neither is taken for the other. samples: those of an earlier part of the run,
    whose workers are loaded again.
    """

    def __init__(self, expected: Mapping[int, ExpectedTurn] | None = None, samples: Samples | None = None) -> None:
        self._expected = dict(expected or {})
        self._turns: dict[int, list[float]] = defaultdict(list)
        self._samples: dict[int, list[float]] = defaultdict(list)
        if samples is not None:
            for cell in np.unique(samples["cell"]).tolist():
                self._samples[cell] = samples["duration_s"][samples["cell"] == cell].tolist()

    def add(self, cell: int, turn_s: float, sample_s: float) -> None:
        """Record one turn and the sample in it."""
        self._turns[cell].append(turn_s)
        self._samples[cell].append(sample_s)

    def left_s(self, cells: Iterable[int]) -> float | None:
        """Return the seconds that one turn of each of `cells` will take, in this order; None while nothing is known.

        A configuration counts with the mean of its own turns without its first, else with its samples, else with its
        guess times the median ratio of measured to guessed samples; without a guess with the median of all others.
        Where its first turn is still to come, that adds its loading and warm-up.
        """
        wanted = list(cells)
        turns = {cell: self._turn_s(cell) for cell in {*wanted, *self._samples}}
        known = [seconds for seconds in turns.values() if seconds is not None]
        if not known and wanted:
            return None
        typical = median(known) if known else 0.0
        first = self._correction(self._first_ratios())
        starts_s = sum(first * self._expected[cell].first_s for cell in self._to_start(wanted))
        return starts_s + sum(typical if (seconds := turns[cell]) is None else seconds for cell in wanted)

    def _turn_s(self, cell: int) -> float | None:
        """Return the seconds of any turn of a configuration but its first."""
        expected, samples = self._expected.get(cell, _NOTHING), self._samples.get(cell)
        if len(self._turns.get(cell, ())) > 1:
            return fmean(self._turns[cell][1:])
        if samples:
            return fmean(samples) + expected.more_s
        return None if expected is _NOTHING else self._sample_ratio() * expected.sample_s + expected.more_s

    def _to_start(self, wanted: Iterable[int]) -> set[int]:
        return {cell for cell in wanted if cell in self._expected and not self._turns.get(cell)}

    def _sample_ratio(self) -> float:
        measured = {cell: fmean(samples) for cell, samples in self._samples.items() if cell in self._expected}
        return self._correction([seconds / self._expected[cell].sample_s for cell, seconds in measured.items()])

    def _first_ratios(self) -> list[float]:
        """Return measured over guessed seconds of loading and warm-up, of every first turn."""
        ratios = []
        for cell, turns in self._turns.items():
            expected = self._expected.get(cell, _NOTHING)
            if turns and expected.first_s > 0:
                excess = turns[0] - self._samples[cell][-len(turns)] - expected.more_s
                ratios.append(max(0.0, excess / expected.first_s))
        return ratios

    @staticmethod
    def _correction(ratios: list[float]) -> float:
        return median(ratios) if ratios else 1.0
