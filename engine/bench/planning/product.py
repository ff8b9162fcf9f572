"""Product of a plan's axes: checked before it is expanded, then numbered and labelled."""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from engine.bench.planning.axes import AXES_BY_NAME, axes_of, axis_of
from engine.bench.planning.axis import Where
from engine.bench.planning.plan import Cell, EmbeddingCell, Plan
from engine.errors import ConfigError
from engine.files import num_distinguishing

MAX_CELLS = 10_000
_OF_LAYOUT = ("instances", "workers", "threads")
_PATHS = ("model", "build")
"""Axes whose values are distinguished by the ends of their paths."""

Axes = Mapping[str, tuple[Any, ...]]
Settings = dict[str, Any]
C = TypeVar("C", Cell, EmbeddingCell)


def checked_axes(plan: Plan) -> Axes:
    """Return the plan's axes with checked values, in the order of their table.

    Raises ConfigError for unknown axes, axes without values, values out of range, an axis that is fixed as well, more
    than 10,000 configurations, and where no model is named.
    """
    for name, values in plan.axes.items():
        axis_of(name, plan.question)
        fixed = [field for field in decided_by([name]) if field in plan.pool or field in plan.workload]
        if fixed:
            raise ConfigError(f"{fixed[0]} is fixed in the plan and varied by the axis {name}: remove one of them")
        if not values:
            raise ConfigError(f"the axis {name} has no values: name one, or remove the axis")
    if not plan.model and "model" not in plan.axes:
        what = "folder or name of an embedding model" if plan.is_embedding else "path of a GGUF file"
        raise ConfigError(f"the plan names no model: give the {what}")
    if (count := math.prod(map(len, plan.axes.values()))) > MAX_CELLS:
        raise ConfigError(
            f"the plan has {count:,} configurations; up to {MAX_CELLS:,} are allowed: vary fewer things at once"
        )
    return {
        name: tuple(map(axis.checked, plan.axes[name]))
        for name, axis in axes_of(plan.question).items()
        if name in plan.axes
    }


def decided_by(axes: Iterable[str]) -> list[str]:
    """Return the names that a plan with these axes may not fix: their own, and processes and threads for a layout."""
    return [field for name in axes for field in (name, *(_OF_LAYOUT if name == "layout" else ()))]


def unvaried(fixed: Mapping[str, Any], axes: Iterable[str]) -> Settings:
    """Return a plan's fixed values without those that its axes decide."""
    decided = decided_by(axes)
    return {name: value for name, value in fixed.items() if name not in decided}


def part(chosen: Settings, where: Where) -> Settings:
    """Return the values that belong to one of the specs."""
    return {name: value for name, value in chosen.items() if AXES_BY_NAME[name].where == where}


def product_of(axes: Axes, make: Callable[[Settings], C]) -> list[C]:
    """Return a configuration for every combination of values, numbered and labelled; equal settings only once."""
    made: dict[tuple[Any, ...], C] = {}
    for values in itertools.product(*axes.values()):
        cell = make(dict(zip(axes, values, strict=True)))
        made.setdefault(tuple(cell.settings.values()), cell)
    labels = _labels([cell.settings for cell in made.values()], axes)
    return [replace(cell, number=number, label=labels[number]) for number, cell in enumerate(made.values())]


def _labels(settings: Sequence[Mapping[str, Any]], axes: Axes) -> list[str]:
    """Return for each configuration its values on the axes that differ, as far as it has them; the layout where none
    differs."""
    differing = [name for name in axes if len({each[name] for each in settings if name in each}) > 1] or ["layout"]
    short = short_paths(settings, axes)
    return [
        " · ".join(
            AXES_BY_NAME[name].show(short.get(name, {}).get(each[name], each[name]))
            for name in differing
            if name in each
        )
        for each in settings
    ]


def short_paths(settings: Sequence[Mapping[str, Any]], axes: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the short name of each path among the settings, by axis; for those of `axes` that have paths."""
    paths = {axis: {path for each in settings if (path := each.get(axis))} for axis in _PATHS if axis in axes}
    return {axis: _short_names(found) for axis, found in paths.items()}


def _short_names(paths: Collection[str]) -> dict[str, str]:
    """Return for each path the fewest of its last parts that no other one ends in, without .gguf."""
    shown = [Path(path.removesuffix(".gguf")) for path in paths]
    nums = num_distinguishing(shown)
    return {path: "/".join(one.parts[-num:]) for path, one, num in zip(paths, shown, nums, strict=True)}
