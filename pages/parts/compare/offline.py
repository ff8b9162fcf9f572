"""Comparison as one HTML file that works offline: sentence, table and charts, light or dark as the reader's system."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from engine.bench.analysis.comparison import Comparison
from engine.bench.analysis.summary import TABLE_METRICS
from engine.units import digits
from pages.parts.benchmark.chart_pen import COLOURS, RAMP
from pages.parts.compare import run_entries
from pages.parts.offline_file import document, json_block, option, text_of

SCRIPT = Path(__file__).with_name("offline.js")
CLASSES = {"↑": "good", "↓": "bad"}
LAYOUT = {"template": "none", "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}


def comparison_html(comparison: Comparison, figures: Sequence[go.Figure]) -> bytes:
    """Return the file; it makes no network requests, and all text from people and models in it is escaped."""
    body = [
        f"<h1>{text_of(comparison.sentence)}</h1>",
        *(f'<p class="muted">{text_of(warning)}</p>' for warning in comparison.warnings),
        _table(comparison),
        *map(_chart, figures),
        _same(comparison),
        _machines(comparison),
        f'<p class="muted">Exported by Logitbench, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.</p>',
        json_block(_themes(), "themes"),
    ]
    scripts = get_plotlyjs(), SCRIPT.read_text("utf-8")
    return document("Comparison", body, scripts=scripts, has_inline_styles=True)  # those of Plotly


def _themes() -> dict[str, Any]:
    """Return for each theme its replacement for every colour that charts are drawn with, and its text colour."""
    found = {}
    for theme in ("light", "dark"):
        own = [*(option(theme, "chartCategoricalColors") or ()), *(option(theme, "chartSequentialColors") or ())]
        found[theme] = {"colours": dict(zip([*COLOURS, *RAMP], own, strict=False)), "text": option(theme, "textColor")}
    return found


def _chart(figure: go.Figure) -> str:
    made = go.Figure(figure).update_layout(LAYOUT)
    return f"{json_block(msgspec.Raw(made.to_json().encode()), 'figure', attribute='class')}<div></div>"


def _table(comparison: Comparison) -> str:
    names = dict.fromkeys([comparison.main_metric, *TABLE_METRICS])
    table = run_entries.frame(comparison, [name for name in names if name in comparison.metrics])
    return _rows(table.columns, table.itertuples(index=False, name=None))


def _same(comparison: Comparison) -> str:
    told = run_entries.same(comparison)
    return f'<p class="muted">{text_of(told)}</p>' if told else ""


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
