"""Explanation of a run in plain words: its layouts, sequences, rounds, control, noise and verdicts."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from engine.bench.analysis.rounds import APART
from engine.bench.analysis.scatter import Scatter
from engine.bench.analysis.series import best_of, measured, varied
from engine.bench.analysis.summary import CellSummary, Summary
from engine.bench.planning.layout import parse_layout
from engine.errors import ConfigError
from engine.runs import RunRecord
from engine.stats import FIRST_LOOK
from engine.units import counted


class Term(NamedTuple):
    """A word of the page and what it means in this run."""

    name: str
    text: str


def in_words(settings: Mapping[str, Any]) -> str:
    """Return layout and sequences of a configuration: "2 processes with 1 thread each, 4 texts at once in each"."""
    with suppress(ConfigError, KeyError):
        layout = parse_layout(settings["layout"]).resolved()
        parallel = settings.get("parallel")
        if not isinstance(parallel, int):
            return layout.in_words
        each = " in each" if layout.instances > 1 else ""
        return f"{layout.in_words}, {counted(parallel, 'text')} at {'once' if parallel > 1 else 'a time'}{each}"
    return ""


def baseline_role(run: RunRecord, summary: Summary) -> str:
    """Return "control" where the others are compared with the plan's control, else "baseline"."""
    return "control" if run.plan and summary.baseline == run.plan.get("anchor", 0) else "baseline"


def explanation(run: RunRecord, summary: Summary, scatter: Scatter) -> tuple[Term, ...]:
    """Return the words that this run's page uses, each with its meaning in this run."""
    return tuple(_terms(run, summary, scatter))


def _terms(run: RunRecord, summary: Summary, scatter: Scatter) -> Iterator[Term]:
    cells = measured(summary, summary.main_metric)
    if not cells:
        return
    best, control = best_of(cells, summary.main_metric), summary.cell(summary.baseline)
    axes, is_in_rounds = varied(cells), run.origin not in APART and run.question != "settings"
    example = next((cell for cell in (best, *cells) if in_words(cell.settings)), None)
    if "layout" in axes and example is not None:
        yield Term("Layout", _layout(str(example.settings["layout"])))
    if "parallel" in axes:
        yield Term("Sequences", "Texts that a process generates at the same time: one pass over the model serves all.")
    if len(cells) > 1 and is_in_rounds:
        num = max(interval.num for interval in (cell.metrics[summary.main_metric] for cell in cells))
        yield Term("Rounds", _rounds(num))
    if len(cells) > 1 and control is not None:
        name = baseline_role(run, summary)
        has_anchors = name == "control" and bool(run.samples["is_anchor"].any())
        yield Term(name.capitalize(), _control(control, has_anchors=has_anchors))
    if scatter.sentence:
        yield Term("Noise", f"{scatter.sentence} Smaller differences take more rounds to tell apart.")
    if any(cell.verdict is not None for cell in cells):
        yield Term("Verdict", _VERDICT)


_VERDICT = (
    "“Faster” and “slower” are said only where the rounds agree so clearly that in at most 1 of 20 runs of equal "
    "configurations any would be called different."
)


def _layout(layout: str) -> str:
    meaning = f"“{layout.replace('x', ' × ', 1)}” is {in_words({'layout': layout})}."
    return f"{meaning} Every process works on texts of its own, its threads share the work on them."


def _rounds(num: int) -> str:
    few = "" if num >= FIRST_LOOK else f" A verdict needs {FIRST_LOOK}."
    return (
        f"In each of {counted(num, 'round')} every configuration was measured once, in a new random order, so that a "
        f"slow minute of the machine hits all alike.{few}"
    )


def _control(cell: CellSummary, *, has_anchors: bool) -> str:
    said = f"{cell.label} is what all others are compared with."
    if has_anchors:
        said += (
            " It was also measured in between: when it changes speed, the machine did, and the samples are repeated."
        )
    return said
