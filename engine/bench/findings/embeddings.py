"""What a run of embedding says: the fastest setting, and what its vectors lose against float32."""

import math

from engine.bench.findings import series
from engine.bench.findings.summary import CellSummary, Summary, summarise
from engine.bench.findings.wording import cosine
from engine.embedding.choice import LOSSLESS
from engine.runs import RunRecord
from engine.samples import METRICS_BY_NAME
from engine.units import quantity


def embedding_sentence(run: RunRecord) -> str:
    """The verdict of the summary, how near the vectors of its cell are to float32, and what is fastest without loss."""
    summary = summarise(run)
    chosen = summary.cell(summary.best)
    if chosen is None or math.isnan(worst_cosine(chosen)):
        return summary.sentence
    said = f"{summary.sentence} Cosine to float32 at worst: {cosine(worst_cosine(chosen))}."
    exact = fastest_exact(summary)
    if worst_cosine(chosen) >= LOSSLESS or exact is None:
        return said
    metric = METRICS_BY_NAME[summary.main_metric]
    return f"{said} Fastest without loss: {exact.label}, {quantity(exact.metrics[metric.name].value, metric.unit)}."


def fastest_exact(summary: Summary) -> CellSummary | None:
    """The cell with the best median among those that give the vectors of float32."""
    measured = series.measured(summary, summary.main_metric)
    able = [cell for cell in measured if worst_cosine(cell) >= LOSSLESS]
    return series.best_of(able, summary.main_metric) if able else None


def worst_cosine(cell: CellSummary) -> float:
    """The least cosine between a vector of the cell and that of float32; NaN where it was not compared."""
    return cell.facts.get("worst_cosine", math.nan)
