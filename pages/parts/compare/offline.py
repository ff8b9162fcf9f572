"""Comparison as one HTML file that works offline: sentence, table and charts, light or dark as the reader's system."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import plotly.graph_objects as go

from engine.bench.analysis.comparison import Comparison
from engine.bench.analysis.summary import TABLE_METRICS
from engine.units import digits
from pages.parts import offline_charts
from pages.parts.compare import run_entries
from pages.parts.offline_file import document, text_of

CLASSES = {"↑": "good", "↓": "bad"}


def comparison_html(comparison: Comparison, figures: Sequence[go.Figure]) -> bytes:
    """Return the file; it makes no network requests, and all text from people and models in it is escaped."""
    body = [
        f"<h1>{text_of(comparison.sentence)}</h1>",
        *(f'<p class="muted">{text_of(warning)}</p>' for warning in comparison.warnings),
        _table(comparison),
        *map(offline_charts.chart, figures),
        _same(comparison),
        _machines(comparison),
        f'<p class="muted">Exported by Logitbench, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.</p>',
        offline_charts.themes(),
    ]
    return document("Comparison", body, scripts=offline_charts.scripts(), has_inline_styles=True)


def _table(comparison: Comparison) -> str:
    names = dict.fromkeys([comparison.main_metric, *TABLE_METRICS])
    table = run_entries.frame(comparison, [name for name in names if name in comparison.metrics])
    return _rows(table.columns, table.itertuples(index=False, name=None))


def _same(comparison: Comparison) -> str:
    shared = run_entries.same(comparison)
    return f'<p class="muted">{text_of(shared)}</p>' if shared else ""


def _machines(comparison: Comparison) -> str:
    """Return the machine and the versions of each run as an HTML table."""
    table = run_entries.machines(comparison)
    return "<h2>Machines and versions</h2>" + _rows(table.columns, table.itertuples(index=False, name=None))


def _rows(head: Iterable[str], rows: Iterable[Sequence[Any]]) -> str:
    names = list(head)
    body = "".join(
        f"<tr>{''.join(_field(name, value) for name, value in zip(names, row, strict=True))}</tr>" for row in rows
    )
    titles = "".join(f"<th>{text_of(name)}</th>" for name in names)
    return f'<div class="wide"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'


def _field(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f'<td class="number">{digits(value)}</td>'
    of_verdict = CLASSES.get(str(value)[:1], "") if name.endswith("verdict") else ""
    return f'<td class="{of_verdict}">{text_of(value)}</td>' if of_verdict else f"<td>{text_of(value)}</td>"
