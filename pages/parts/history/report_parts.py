"""Parts of a report as they are shown on the page and in its file: text, the chart of a run or a trend, a trial."""

from typing import NamedTuple

import plotly.graph_objects as go

from engine.bench.analysis import series, trends
from engine.bench.analysis.summary import summarise
from engine.errors import HistoryError
from engine.history import History
from engine.history.reports import Block
from engine.history.trials import title_of
from engine.workbench import Workbench
from engine.workbench.trials import StoredTrial
from pages.parts.benchmark import charts
from pages.parts.benchmark.run_state import ASKED
from pages.parts.history import tables, trend_chart
from pages.parts.units import local_time

HEADING = "# "


class Part(NamedTuple):
    """A chart or a trial. facts: what it is, in one line; page and query: where it opens, `query` is name and value."""

    title: str
    facts: str
    figure: go.Figure | None
    trial: StoredTrial | None
    page: str
    query: tuple[str, str]


def part_of(bench: Workbench, history: History, block: Block) -> Part:
    """Return the part that a block names; raises HistoryError where its run or trial is gone or has nothing to show."""
    if block.kind == "trial":
        return _trial(history, block)
    return _trend(bench, history, block) if block.kind == "trend" else _run(bench, block)


def paragraphs(text: str) -> list[tuple[bool, str]]:
    """Return the paragraphs of a text, each with whether it is a heading; the lines of a paragraph are kept."""
    found: list[tuple[bool, str]] = []
    for paragraph in text.replace("\r\n", "\n").split("\n\n"):
        rest: list[str] = []
        for line in paragraph.split("\n"):
            if line.startswith(HEADING):
                found += [(False, "\n".join(rest))] if rest else []
                rest = []
                found.append((True, line.removeprefix(HEADING)))
            else:
                rest.append(line)
        found.append((False, "\n".join(rest)))
    return [(is_heading, words.strip()) for is_heading, words in found if words.strip()]


def _run(bench: Workbench, block: Block) -> Part:
    run = bench.bench.run(block.of)
    if run is None:
        raise HistoryError("The run of this part was deleted.")
    summary = summarise(run)
    is_measured = bool(series.measured(summary, summary.main_metric))
    return Part(
        title=run.name or ASKED.get(run.question, run.question),
        facts=summary.sentence,
        figure=charts.cells(run, summary, summary.main_metric) if is_measured else None,
        trial=None,
        page="benchmark.py",
        query=("run", run.id),
    )


def _trend(bench: Workbench, history: History, block: Block) -> Part:
    run_id, _, number = block.of.partition(".")
    run = bench.bench.run(run_id)
    cell = next((one for one in run.cells if str(one.number) == number), None) if run else None
    if run is None or cell is None:
        raise HistoryError("The run of this trend was deleted.")
    points = history.find.trend(run_id, cell.number, block.metric)
    found = trends.trend(points, block.metric)
    return Part(
        title=" · ".join(filter(None, (run.name, cell.label))) + " over time",
        facts=found.sentence,
        figure=trend_chart.chart(found, block.metric) if points else None,
        trial=None,
        page="history.py",
        query=("trend", block.of),
    )


def _trial(history: History, block: Block) -> Part:
    trial = history.trial(block.of)
    if trial is None:
        raise HistoryError("The trial of this part was deleted.")
    at = local_time(trial.created_at)
    facts = (trial.model.name, trial.model.quantisation, f"{at.day} {at:%B %Y, %H:%M}")
    return Part(
        title=title_of(trial.prompt, trial.messages) or tables.EMPTY,
        facts=" · ".join(filter(None, facts)),
        figure=None,
        trial=StoredTrial(trial),
        page="prompt_lab.py",
        query=("trial", trial.id),
    )
