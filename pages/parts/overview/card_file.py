"""This machine's card as a table, as text, as an SVG image, and as one HTML file that works offline."""

import textwrap
from collections.abc import Iterator, Sequence

from engine.workbench.machine_card import MachineCard
from engine.workbench.machine_facts import Fact, Provenance
from pages.parts.labels import one_line
from pages.parts.offline_file import document, option, text_of
from pages.parts.overview.heading import HERE, ICON

WIDTH, HEIGHT, MARGIN = 1200, 640, 56
ROW, FIRST_ROW, LINE = 88, 168, 22
LABEL_X, VALUE_X, NOTE_X = MARGIN, 290, 720
NOTE_CHARACTERS, NOTE_LINES, CONDITION_CHARACTERS = 54, 3, 140
"""What fits into a line of the image at its sizes of type, and how many lines of a note it shows."""

TITLE = "This machine, measured with Logitbench"
MARKS: dict[Provenance, str] = {
    "measured": "measured",
    "measured, disturbed": "estimated",
    "estimated": "estimated",
    "not measured": "not-measured",
}
"""Provenances, and the CSS class of each."""

COLOURS = {"measured": "greenTextColor", "estimated": "orangeTextColor", "not-measured": "grayTextColor"}
"""Option of the theme for each of these classes."""


def table(facts: Sequence[Fact]) -> str:
    """Return the facts as an HTML table."""
    return f'<table class="card" aria-label="This machine"><tbody>{"".join(map(_row, facts))}</tbody></table>'


def conditions(card: MachineCard) -> list[str]:
    """Return lines of text: the conditions of its figures, and what disturbed them if anything did."""
    return [one_line(line) for line in (card.conditions, card.disturbed) if line]


def text(card: MachineCard, facts: Sequence[Fact]) -> str:
    """Return the card as lines of text."""
    answers = (f"{fact.label}: {one_line(fact.value)} ({fact.provenance})" for fact in facts)
    return "\n".join([one_line(card.title), *answers, *conditions(card)])


def html(card: MachineCard, facts: Sequence[Fact]) -> bytes:
    """Return the card as one HTML file that loads nothing."""
    body = [
        f"<h1>{text_of(card.title)}</h1>",
        table(facts),
        *(f'<p class="conditions">{text_of(line)}</p>' for line in conditions(card)),
        '<p class="conditions">Made with Logitbench. This file loads nothing from the network.</p>',
    ]
    return document(TITLE, body, style=(HERE / "card_file.css").read_text("utf-8"))


def svg(card: MachineCard, facts: Sequence[Fact]) -> str:
    """Return the card as an SVG image in the colours of the light theme, of the same figures."""
    background, colour, muted, border = (
        option("light", name) for name in ("backgroundColor", "textColor", "grayTextColor", "borderColor")
    )
    icon = ICON.read_text("utf-8").replace("<svg ", f'<svg x="{MARGIN}" y="48" width="56" height="56" ', 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="system-ui, sans-serif" fill="{colour}" role="img" aria-label="{TITLE}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{background}"/>{icon}',
        _words(132, 74, card.title, size=26, weight=600),
        _words(132, 102, card.machine, size=18, fill=muted),
        _words(1036, 74, "Logitbench", size=18, weight=600, fill=muted),
    ]
    for number, fact in enumerate(facts):
        y = FIRST_ROW + ROW * number
        parts.append(f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y - 34}" y2="{y - 34}" stroke="{border}"/>')
        parts += _drawn(fact, y, muted)
    below = FIRST_ROW + ROW * len(facts) - 8
    for number, line in enumerate(textwrap.wrap(card.conditions, CONDITION_CHARACTERS)[:2]):
        parts.append(_words(MARGIN, below + 20 * number, line, size=14, fill=muted))
    return "\n".join([*parts, "</svg>"])


def _row(fact: Fact) -> str:
    mark = f'<span class="mark {MARKS[fact.provenance]}">{fact.provenance}</span>'
    return (
        f'<tr><th scope="row">{text_of(fact.label)}</th><td class="value">{text_of(fact.value)}{mark}</td>'
        f'<td class="note">{text_of(fact.note)}</td></tr>'
    )


def _drawn(fact: Fact, y: int, muted: str) -> Iterator[str]:
    """Yield the texts of one row of the image."""
    yield _words(LABEL_X, y, fact.label, size=17, fill=muted)
    yield _words(VALUE_X, y, fact.value, size=21, weight=600)
    yield _words(VALUE_X, y + 24, fact.provenance, size=15, fill=option("light", COLOURS[MARKS[fact.provenance]]))
    wrapped = textwrap.wrap(one_line(fact.note), NOTE_CHARACTERS, max_lines=NOTE_LINES, placeholder=" …")
    for number, line in enumerate(wrapped):
        yield _words(NOTE_X, y - 8 + LINE * number, line, size=15, fill=muted)


def _words(x: int, y: int, words: str, *, size: int, weight: int = 400, fill: str = "") -> str:
    colour = f' fill="{fill}"' if fill else ""
    return f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}"{colour}>{text_of(words)}</text>'
