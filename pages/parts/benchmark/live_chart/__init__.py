"""Live chart: the samples of a run as they arrive, one row for each configuration, updated in place.

Streamlit makes a Plotly chart anew whenever its figure changes, which blinks, and takes processor time from the
measurement.
"""

import math
from pathlib import Path
from typing import Any

from engine.bench.analysis.explanation import baseline_role
from engine.bench.analysis.scatter import KINDS, kinds_of, ratios_of
from engine.bench.analysis.summary import CellSummary, Summary
from engine.runs import RunRecord
from engine.samples import METRICS_BY_NAME
from engine.units import counted, quantity, scale_of
from pages.parts.benchmark.chart_pen import MARKS_OF, MOST_DOTS
from pages.parts.benchmark.charts import MOST_CELLS
from pages.parts.component import component
from pages.parts.labels import one_line
from pages.parts.token_strip import module

HERE = Path(__file__).parent
SCRIPT = module(["element"], HERE / "chart.js", "Chart")
_component = component("logitbench_live_chart", js=SCRIPT, css=(HERE / "chart.css").read_text("utf-8"))


def live_chart(run: RunRecord, summary: Summary, now: int | None, *, key: str) -> None:
    """Draw the samples of an unfinished run; `now`: number of the configuration measured now."""
    _component(key=key, data=data_of(run, summary, now))


def data_of(run: RunRecord, summary: Summary, now: int | None) -> dict[str, Any]:
    """Return what the chart draws, in the order of the plan; of very many samples the last MOST_DOTS.

    Every configuration has its row from the start, so that nothing moves when a sample arrives; of very many only those
    with samples have one.
    """
    metric = METRICS_BY_NAME[summary.main_metric]
    samples = run.samples[-MOST_DOTS:]
    values, kinds = samples[metric.name], kinds_of(samples, ratios_of(samples, metric.name))
    largest = max((value for value in values.tolist() if math.isfinite(value)), default=0.0)
    scale = scale_of(metric.unit, largest)
    able = [cell for cell in summary.cells if cell.status != "refused"]
    shown = able if len(able) <= MOST_CELLS else [cell for cell in able if metric.name in cell.metrics][-MOST_CELLS:]
    rows = []
    for cell in shown:
        is_own = samples["cell"] == cell.number
        pairs = zip((values[is_own] * scale.factor).tolist(), kinds[is_own].tolist(), strict=True)
        rows.append(
            {
                "label": one_line(cell.label or "the only configuration"),
                "isNow": cell.number == now,
                "median": _median(cell, metric.name, scale.factor),
                "figure": _median_text(cell, metric.name, metric.unit),
                "samples": [{"value": value, "kind": KINDS[kind]} for value, kind in pairs if math.isfinite(value)],
            }
        )
    control = summary.cell(summary.baseline)
    return {
        "rows": rows,
        "unit": f"{metric.label}, {scale.unit}" if scale.unit else metric.label,
        "baseline": _median(control, metric.name, scale.factor) if control is not None else None,
        "role": baseline_role(run, summary),
        "words": {kind: mark.words for kind, mark in MARKS_OF.items()},
    }


def _median(cell: CellSummary, metric: str, factor: float) -> float | None:
    value = cell.metrics[metric].value if metric in cell.metrics else math.nan
    return value * factor if math.isfinite(value) else None


def _median_text(cell: CellSummary, metric: str, unit: str) -> str:
    """Return the median in words, with the number of samples behind it."""
    if metric not in cell.metrics:
        return ""
    return f"{quantity(cell.metrics[metric].value, unit)} · {counted(cell.num_counted, 'sample')}"
