"""Time breakdown per token for each way of calling the model: the answer to "What does Python cost?"."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from engine.bench.analysis.summary import by_round
from engine.bench.measurement.token_parts import PARTS, fact_name
from engine.runs import CellRecord, RunRecord
from engine.stats import compare
from engine.units import percent, quantity

INSIDE = ("prefill", "decode")
"""Parts spent inside llama_decode, whatever the calling language."""


class Part(NamedTuple):
    """One segment of a bar; share: of the bar's total seconds."""

    name: str
    seconds_per_token: float
    share: float


class Bar(NamedTuple):
    """One configuration: its parts in the order of PARTS, which add up to seconds_per_token, prompts included."""

    number: int
    label: str
    arm: str
    parts: tuple[Part, ...]
    seconds_per_token: float

    @property
    def share_outside(self) -> float:
        """Share of the time that was not spent inside llama_decode."""
        return 1 - sum(part.share for part in self.parts if part.name in INSIDE)


class TimeBreakdown(NamedTuple):
    """A bar for each configuration whose parts were measured, and the conclusion."""

    bars: tuple[Bar, ...]
    sentence: str


def time_breakdown(run: RunRecord) -> TimeBreakdown:
    """Return the bars of the run's configurations, in order; the sentence is empty where no parts were measured."""
    bars = tuple(_bar(cell) for cell in run.cells if fact_name("rest") in cell.facts)
    return TimeBreakdown(bars, _sentence(run, bars) if bars else "")


def _bar(cell: CellRecord) -> Bar:
    seconds = {name: cell.facts.get(fact_name(name), 0.0) for name in PARTS}
    total = sum(seconds.values())
    parts = tuple(Part(name, each, each / total if total else 0.0) for name, each in seconds.items())
    return Bar(cell.number, cell.label, _arm(cell.settings), parts, total)


def _arm(settings: Mapping[str, Any]) -> str:
    return str(settings.get("arm", "pool"))


def _sentence(run: RunRecord, bars: tuple[Bar, ...]) -> str:
    """Return the upper bound of Python's cost in this pool, that of create_completion, and the speed against C++."""
    by_arm = {bar.arm: bar for bar in reversed(bars)}
    ours = by_arm.get("pool", bars[0])
    said = (
        f"Python costs at most {percent(ours.share_outside, 1)} here: {_name(ours)} spends "
        f"{_inside(ours)} per token inside llama_decode; the rest includes sampling"
    )
    usual = by_arm.get("create_completion")
    if usual is not None and usual is not ours:
        said += f"; create_completion spends {_inside(usual)} there ({percent(usual.share_outside, 1)} outside)"
    return f"{said}.{_race(run, ours, by_arm.get('llama-bench'))}"


def _race(run: RunRecord, ours: Bar, yardstick: Bar | None) -> str:
    if yardstick is None or yardstick is ours:
        return ""
    speeds = [by_round(run.samples, bar.number, "decode_per_s") for bar in (ours, yardstick)]
    verdict = compare(*speeds)
    if not verdict.num_rounds:
        return ""
    ratio = verdict.ratio
    return f" Decode compared with llama-bench: {ratio.value:.2f} times ({ratio.low:.2f} to {ratio.high:.2f})."


def _name(bar: Bar) -> str:
    return {"pool": "this pool", "loop": "the bare loop"}.get(bar.arm, bar.arm)


def _inside(bar: Bar) -> str:
    inside = sum(part.seconds_per_token for part in bar.parts if part.name in INSIDE)
    return f"{quantity(inside, 's')} of {quantity(bar.seconds_per_token, 's')}"
