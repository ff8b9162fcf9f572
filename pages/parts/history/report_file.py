"""Report as one HTML file that works offline: its texts, charts and trials, light or dark as the reader's system."""

from collections.abc import Iterator
from datetime import UTC, datetime

from engine.errors import EngineError
from engine.history import History
from engine.history.reports import Block, Report
from engine.notebook import to_html
from engine.workbench import Workbench
from pages.parts import offline_charts
from pages.parts.history.report_parts import Part, paragraphs, part_of
from pages.parts.offline_file import document, text_of


def report_html(bench: Workbench, history: History, report: Report) -> bytes:
    """Return the file; it loads nothing from the network, and all text from people and models in it is escaped.

    A part whose run or trial is gone is named in its place.
    """
    body = [f"<h1>{text_of(report.name)}</h1>"]
    has_charts = False
    for block in report.blocks:
        if block.kind == "text":
            body += _text(block)
            continue
        try:
            part = part_of(bench, history, block)
        except EngineError as error:
            body.append(f'<p class="muted">{text_of(error)}</p>')
            continue
        has_charts |= part.figure is not None
        body += _part(part)
    body.append(f'<p class="muted">Made with Logitbench, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.</p>')
    if has_charts:
        body.append(offline_charts.themes())
    scripts = offline_charts.scripts() if has_charts else ()
    return document(report.name, body, scripts=scripts, has_inline_styles=True)  # the strips have some too


def _text(block: Block) -> Iterator[str]:
    for is_heading, words in paragraphs(block.text):
        lines = "<br>".join(map(text_of, words.split("\n")))
        yield f"<h2>{lines}</h2>" if is_heading else f"<p>{lines}</p>"


def _part(part: Part) -> Iterator[str]:
    yield f"<h2>{text_of(part.title)}</h2>"
    yield f'<p class="muted">{text_of(part.facts)}</p>'
    if part.figure is not None:
        yield offline_charts.chart(part.figure)
    if part.completion is not None:
        yield to_html(part.completion)
