"""What a run of embedding says: the fastest setting, and what its vectors lose against float32."""

import math
from collections.abc import Sequence

from engine.bench.findings.summary import CellSummary, Summary, summarise
from engine.bench.findings.wording import cosine
from engine.runs import RunRecord
from engine.samples import METRICS_BY_NAME
from engine.units import quantity

EXACT_COSINE = 0.9999
"""From this worst cosine on vectors count as those of float32: rankings of texts stay the same."""


def embedding_sentence(run: RunRecord) -> str:
    """The verdict of the summary, how near the vectors of its cell are to float32, and what is fastest without loss."""
    summary = summarise(run)
    chosen = next((cell for cell in summary.cells if cell.number == summary.best), None)
    if chosen is None or math.isnan(worst_cosine(chosen)):
        return summary.sentence
    said = f"{summary.sentence} Cosine to float32 at worst: {cosine(worst_cosine(chosen))}."
    exact = fastest_exact(summary)
    if worst_cosine(chosen) >= EXACT_COSINE or exact is None:
        return said
    metric = METRICS_BY_NAME[summary.main_metric]
    return f"{said} Fastest without loss: {exact.label}, {quantity(exact.metrics[metric.name].value, metric.unit)}."


def fastest_exact(summary: Summary) -> CellSummary | None:
    """The cell with the best median among those that give the vectors of float32."""
    able = [cell for cell in _measured(summary) if worst_cosine(cell) >= EXACT_COSINE]
    return max(able, key=lambda cell: cell.metrics[summary.main_metric].value, default=None)


def worst_cosine(cell: CellSummary) -> float:
    """The least cosine between a vector of the cell and that of float32; NaN where it was not compared."""
    return cell.facts.get("worst_cosine", math.nan)


def _measured(summary: Summary) -> Sequence[CellSummary]:
    return [cell for cell in summary.cells if summary.main_metric in cell.metrics]
