"""Comparison as one HTML file that works offline: sentence, table and charts, light or dark as the reader's system."""

import html
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import streamlit as st
from plotly.offline import get_plotlyjs

from engine.bench.analysis.comparison import Comparison
from engine.bench.analysis.summary import TABLE_METRICS
from engine.units import digits
from pages.parts.benchmark.chart_pen import COLOURS, RAMP
from pages.parts.compare import run_entries
from pages.parts.labels import one_line

HERE = Path(__file__).parent
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""Content security policy of the file: a browser loads nothing from outside the file."""

STYLES = {
    "background": "backgroundColor",
    "text": "textColor",
    "muted": "grayTextColor",
    "border": "borderColor",
    "good": "greenTextColor",
    "bad": "orangeTextColor",
}
"""CSS variables, and the option of the workbench's theme that each is set from."""

CLASSES = {"↑": "good", "↓": "bad"}
LAYOUT = {"template": "none", "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}


def comparison_html(comparison: Comparison, figures: Sequence[go.Figure]) -> bytes:
    """Return the file; it makes no network requests, and all text from people and models in it is escaped."""
    now = datetime.now(UTC)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width"><title>Comparison</title>',
        f"<style>{_variables()}{(HERE / 'offline.css').read_text('utf-8')}</style></head><body>",
        f"<h1>{_text(comparison.sentence)}</h1>",
        *(f'<p class="muted">{_text(warning)}</p>' for warning in comparison.warnings),
        _table(comparison),
        *map(_chart, figures),
        _same(comparison),
        _machines(comparison),
        f'<p class="muted">Exported by Logitbench, {now:%Y-%m-%d %H:%M} UTC.</p>',
        f'<script type="application/json" id="themes">{_json(_themes())}</script>',
        f"<script>{get_plotlyjs()}</script>",
        f"<script>{(HERE / 'offline.js').read_text('utf-8')}</script></body></html>",
    ]
    return "\n".join(parts).encode()


def _text(text: Any) -> str:
    return html.escape(one_line(str(text)))


def _json(value: Any) -> str:
    """Return JSON in which no text can close an HTML element of the page."""
    return json.dumps(value).replace("<", "\\u003c")


def _option(theme: str, name: str) -> Any:
    return st.get_option(f"theme.{theme}.{name}")


def _variables() -> str:
    """Return the theme's colours as CSS variables."""
    light, dark = (
        "".join(f"--{name}:{_option(theme, option)};" for name, option in STYLES.items() if _option(theme, option))
        for theme in ("light", "dark")
    )
    return f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"


def _themes() -> dict[str, Any]:
    """Return for each theme its replacement for every colour that charts are drawn with, and its text colour."""
    found = {}
    for theme in ("light", "dark"):
        own = [*(_option(theme, "chartCategoricalColors") or ()), *(_option(theme, "chartSequentialColors") or ())]
        found[theme] = {"colours": dict(zip([*COLOURS, *RAMP], own, strict=False)), "text": _option(theme, "textColor")}
    return found


def _chart(figure: go.Figure) -> str:
    made = go.Figure(figure).update_layout(LAYOUT)
    return f'<script type="application/json" class="figure">{made.to_json()}</script><div></div>'


def _table(comparison: Comparison) -> str:
    names = dict.fromkeys([comparison.main_metric, *TABLE_METRICS])
    table = run_entries.frame(comparison, [name for name in names if name in comparison.metrics])
    return _rows(table.columns, table.itertuples(index=False, name=None))


def _same(comparison: Comparison) -> str:
    told = run_entries.same(comparison)
    return f'<p class="muted">{_text(told)}</p>' if told else ""


def _machines(comparison: Comparison) -> str:
    """Return the machine and the versions of each run as an HTML table."""
    table = run_entries.machines(comparison)
    return "<h2>Machines and versions</h2>" + _rows(table.columns, table.itertuples(index=False, name=None))


def _rows(head: Iterable[str], rows: Iterable[Sequence[Any]]) -> str:
    names = list(head)
    body = "".join(
        f"<tr>{''.join(_field(name, value) for name, value in zip(names, row, strict=True))}</tr>" for row in rows
    )
    titles = "".join(f"<th>{_text(name)}</th>" for name in names)
    return f'<div class="wide"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'


def _field(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f'<td class="number">{digits(value)}</td>'
    of_verdict = CLASSES.get(str(value)[:1], "") if name.endswith("verdict") else ""
    return f'<td class="{of_verdict}">{_text(value)}</td>' if of_verdict else f"<td>{_text(value)}</td>"
