"""Report as one HTML file that works offline: its texts, charts and trials, light or dark as the reader's system."""

from collections.abc import Iterator
from datetime import UTC, datetime

from engine.errors import EngineError
from engine.history import History
from engine.history.reports import Block, Report
from engine.notebook import to_html
from engine.units import quantity
from engine.workbench import Workbench
from engine.workbench.trials import StoredTrial
from pages.parts import offline_charts
from pages.parts.history.report_parts import Part, paragraphs, part_of
from pages.parts.offline_file import document, text_of
from pages.parts.strip_file import HeldTrials, details, plain_text, strip_style
from pages.parts.token_strip import offline_script

MOST_BYTES = 32_000_000
"""Size up to which a file holds trials with their candidates."""


def report_html(bench: Workbench, history: History, report: Report) -> bytes:
    """Return the file; it loads nothing from the network, and all text from people and models in it is escaped.

    Trials are token strips that can be inspected, as many as MOST_BYTES hold; others are their coloured text. A
    part whose run or trial is gone is named in its place.
    """
    body = [f"<h1>{text_of(report.name)}</h1>"]
    has_charts, held = False, HeldTrials()
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
        body += _part(part, held)
    body.append(f'<p class="muted">Made with Logitbench, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.</p>')
    if has_charts:
        body.append(offline_charts.themes())
    scripts = list(offline_charts.scripts()) if has_charts else []
    if blocks := list(held.blocks()):
        body += blocks
        scripts.append(offline_script("several"))
    # Charts make style sheets, and coloured texts have inline styles.
    return document(report.name, body, style=strip_style(), scripts=scripts, has_inline_styles=True)


def _text(block: Block) -> Iterator[str]:
    for is_heading, words in paragraphs(block.text):
        lines = "<br>".join(map(text_of, words.split("\n")))
        yield f"<h2>{lines}</h2>" if is_heading else f"<p>{lines}</p>"


def _part(part: Part, held: HeldTrials) -> Iterator[str]:
    yield f"<h2>{text_of(part.title)}</h2>"
    yield f'<p class="muted">{text_of(part.facts)}</p>'
    if part.figure is not None:
        yield offline_charts.chart(part.figure)
    if part.trial is not None:
        yield from _trial(part.trial, held)


def _trial(trial: StoredTrial, held: HeldTrials) -> Iterator[str]:
    """Yield the strip of a trial, or its coloured text where the file is full."""
    if held.add(trial, MOST_BYTES):
        yield f'<div class="held-strip" data-trial="{trial.id}"></div>{plain_text(trial)}'
    else:
        most = quantity(MOST_BYTES, "B")
        reason = f"Shown without its candidates: the trials of this file would take more than {most}."
        yield f'<p class="muted">{text_of(reason)}</p>{to_html(trial.completion)}'
    yield details(trial)
