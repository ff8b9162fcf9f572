"""Configuration grid of a plan: selects a coarse subset and finds the neighbours of a configuration."""

import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any

from engine.bench.planning.plan import Cell

Point = tuple[int, ...]


class Grid:
    """Grid of points along the varied `axes`; numbers are sorted, other values keep their order of appearance."""

    def __init__(self, cells: Sequence[Cell], axes: Collection[str]) -> None:
        names = [name for name in cells[0].settings if name in axes]
        self._values = [_in_order([cell.settings[name] for cell in cells]) for name in names]
        self._points: dict[int, Point] = {
            cell.number: tuple(
                found.index(cell.settings[name]) for name, found in zip(names, self._values, strict=True)
            )
            for cell in cells
        }
        self._cells = {point: number for number, point in self._points.items()}

    def coarse(self, most: int, out: Collection[int] = ()) -> list[int]:
        """Return configurations spread over the grid; all where there are at most `most`.

        Else, of each axis of many numbers, one value above the middle, from which neighbours lead up or down, and of
        each other axis two values, or one of the last axes where that makes too many. A point in `out` is replaced by
        its nearest neighbour.
        """
        able = [number for number in self._points if number not in out]
        if len(able) <= most:
            return able
        chosen = [_spread(values) for values in self._values]
        for places in reversed(chosen):
            if math.prod(map(len, chosen)) > most:
                del places[1:]
        near = (min(able, key=lambda number: self._distance(number, point)) for point in itertools.product(*chosen))
        return list(dict.fromkeys(near))

    def neighbours(self, cell: int) -> list[int]:
        """Return the configurations one step away along one axis."""
        point = self._points[cell]
        steps = [
            (*point[:axis], place + step, *point[axis + 1 :]) for axis, place in enumerate(point) for step in (1, -1)
        ]
        return [self._cells[near] for near in steps if near in self._cells]

    def _distance(self, cell: int, point: Point) -> int:
        return sum(abs(a - b) for a, b in zip(self._points[cell], point, strict=True))


def _spread(values: Sequence[Any]) -> list[int]:
    """Return the places along an axis to begin with."""
    above = 5 * len(values) // 8
    if len(values) < 3:
        return list(range(len(values)))
    return [above] if _are_numbers(values) else [len(values) // 4, above]


def _in_order(values: Sequence[Any]) -> list[Any]:
    distinct = list(dict.fromkeys(values))
    return sorted(distinct) if _are_numbers(distinct) else distinct


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
