"""Result of an embedding run: the fastest setting, and the loss of its vectors against float32."""

import math

from engine.bench.analysis import series
from engine.bench.analysis.summary import CellSummary, Summary, summarise
from engine.bench.analysis.wording import cosine
from engine.embedding.choice import LOSSLESS
from engine.runs import RunRecord
from engine.samples import METRICS_BY_NAME
from engine.units import quantity


def embedding_sentence(run: RunRecord) -> str:
    """Return the summary's sentence, the cosine of the best configuration to float32, and the fastest lossless one."""
    summary = summarise(run)
    chosen = summary.cell(summary.best)
    if chosen is None or math.isnan(worst_cosine(chosen)):
        return summary.sentence
    said = f"{summary.sentence} Worst cosine to float32: {cosine(worst_cosine(chosen))}."
    exact = fastest_exact(summary)
    if worst_cosine(chosen) >= LOSSLESS or exact is None:
        return said
    metric = METRICS_BY_NAME[summary.main_metric]
    return f"{said} Fastest without loss: {exact.label}, {quantity(exact.metrics[metric.name].value, metric.unit)}."


def fastest_exact(summary: Summary) -> CellSummary | None:
    """Return the configuration with the best median among the lossless ones (worst cosine at least LOSSLESS)."""
    measured = series.measured(summary, summary.main_metric)
    able = [cell for cell in measured if worst_cosine(cell) >= LOSSLESS]
    return series.best_of(able, summary.main_metric) if able else None


def worst_cosine(cell: CellSummary) -> float:
    """Return the lowest cosine between a vector of the configuration and float32's; NaN where not compared."""
    return cell.facts.get("worst_cosine", math.nan)
