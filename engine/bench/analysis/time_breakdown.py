"""Time breakdown per token for each way of calling the model: the answer to "What does Python cost?"."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from engine.bench.analysis.summary import by_round
from engine.runs import CellRecord, RunRecord
from engine.stats import compare
from engine.units import percent, quantity

PARTS = {
    "tokenise": "text to token ids",
    "prefill": "llama_decode of the prompt",
    "decode": "llama_decode of the tokens",
    "sample": "choosing the token",
    "distribution": "exact figures of each token",
    "transport": "messages between processes",
    "rest": "the program's own work",
}
"""Parts of a request's time, with their descriptions. A runtime in one process has no transport; "rest" is the time
that no other part accounts for."""

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


class PartTotals:
    """Running totals of the parts over the samples of one configuration."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._num_tokens = 0

    def add(self, seconds: Mapping[str, float], wall_s: float, num_tokens: int) -> None:
        """Add a sample of `num_tokens` generated tokens: seconds of some parts; the remainder of `wall_s` is rest."""
        for name, each in seconds.items():
            self._seconds[name] += each
        self._seconds["rest"] += max(0.0, wall_s - sum(seconds.values()))
        self._num_tokens += num_tokens

    def facts(self) -> dict[str, float]:
        """Return a configuration's facts: seconds of each part per generated token; none before the first sample."""
        if not self._num_tokens:
            return {}
        return {_fact(name): seconds / self._num_tokens for name, seconds in self._seconds.items()}


def seconds_of_pool(gained: Mapping[str, float], wall_s: float) -> dict[str, float]:
    """Return the seconds of each part of one stream in a pool.

    `gained`: increase of the worker's figures (`Pool.measure`) during `wall_s`. Time outside the worker loop counts as
    transport: messages in both directions.
    """
    return {
        "prefill": gained["prefill_s"],
        "decode": gained["decode_s"] - gained["prefill_s"],
        **{name: gained.get(f"{name}_s", 0.0) for name in ("tokenise", "sample", "distribution")},
        "transport": max(0.0, wall_s - gained["loop_s"]),
    }


def time_breakdown(run: RunRecord) -> TimeBreakdown:
    """Return the bars of the run's configurations, in order; the sentence is empty where no parts were measured."""
    bars = tuple(_bar(cell) for cell in run.cells if _fact("rest") in cell.facts)
    return TimeBreakdown(bars, _sentence(run, bars) if bars else "")


def _fact(part: str) -> str:
    return f"{part}_part_s"


def _bar(cell: CellRecord) -> Bar:
    seconds = {name: cell.facts.get(_fact(name), 0.0) for name in PARTS}
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
        f"{_inside(ours)} a token inside llama_decode, and the rest holds the choice of the token too"
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
    return f" Decode beside llama-bench: {ratio.value:.2f} times ({ratio.low:.2f} to {ratio.high:.2f})."


def _name(bar: Bar) -> str:
    return {"pool": "this pool", "loop": "the bare loop"}.get(bar.arm, bar.arm)


def _inside(bar: Bar) -> str:
    inside = sum(part.seconds_per_token for part in bar.parts if part.name in INSIDE)
    return f"{quantity(inside, 's')} of {quantity(bar.seconds_per_token, 's')}"
