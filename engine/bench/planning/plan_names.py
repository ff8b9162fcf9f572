"""Default names of plans: after the plan they were made from, or after what they measure."""

from pathlib import Path
from typing import Any

from engine.bench.planning.axes import axes_of
from engine.bench.planning.axis import Axis
from engine.bench.planning.plan import Plan, TextWorkload, Workload
from engine.bench.planning.product import unvaried

MOST_VALUES, LONGEST = 4, 120


def name_of(plan: Plan, given: Plan) -> str:
    """Return the name of a plan made from `given`: the same while it measures the same, else its axes and requests."""
    return given.name if _measured(plan) == _measured(given) else by_axes(plan)


def by_axes(plan: Plan) -> str:
    """Return what a plan measures, such as "Sequences 1, 4; layout 1 × 2; 64 + 32 tokens": varied axes first."""
    known = [(axis, plan.axes[name]) for name, axis in axes_of(plan.question).items() if name in plan.axes]
    ordered = sorted(known, key=lambda one: len(one[1]) == 1)
    parts = [f"{axis.label[:1].lower()}{axis.label[1:]} {_values(axis, values)}" for axis, values in ordered]
    name = "; ".join([*parts, *_asked(plan)])
    name = name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
    return name[:1].upper() + name[1:]


def _measured(plan: Plan) -> tuple[Any, ...]:
    """Return all that determines what is measured and how often; equivalent settings give equal values."""
    return plan.question, plan.model, plan.axes, unvaried(plan.pool, plan.axes), _workload(plan), plan.rounds


def _values(axis: Axis, values: tuple[Any, ...]) -> str:
    shown = [_value(axis, value) for value in values]
    if len(shown) > MOST_VALUES:
        shown = [*shown[: MOST_VALUES - 2], "…", shown[-1]]
    return ", ".join(shown).replace(", …, ", " … ")


def _value(axis: Axis, value: Any) -> str:
    if value is None:
        return axis.unset
    if axis.kind == "switch":
        return "on" if value else "off"
    if axis.kind == "path":
        return Path(value).name.removesuffix(".gguf")
    if axis.kind in ("layout", "engine"):
        return axis.show(value)
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _asked(plan: Plan) -> list[str]:
    """Return the requests of each sample, as far as no axis varies them."""
    asked = _workload(plan)
    if asked.texts if isinstance(asked, TextWorkload) else asked.prompts:
        return ["custom texts"]
    names = ("num_texts", "num_words") if plan.is_embedding else ("num_prompt", "num_generated")
    values = {name: getattr(asked, name) for name in names if name not in plan.axes}
    if len(values) == 2 and not plan.is_embedding:
        return [f"{values['num_prompt']:,} + {values['num_generated']:,} tokens"]
    known = axes_of(plan.question)
    return [known[name].show(value) for name, value in values.items()]


def _workload(plan: Plan) -> Workload | TextWorkload:
    """Return the workload without the values that an axis decides."""
    fixed = unvaried(plan.workload, plan.axes)
    return TextWorkload.from_dict(fixed) if plan.is_embedding else Workload.from_dict(fixed)
