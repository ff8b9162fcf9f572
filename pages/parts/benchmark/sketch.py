"""Sketch of a run's answer, shown beside a plan while its question has no run yet."""

import streamlit as st

from engine.bench.planning.plan import Question
from pages.parts.images import data_address

CAPTIONS: dict[Question, str] = {
    "speed": "After the run: the best configuration beside the control, and speed by the number of sequences.",
    "settings": "After the run: the best settings beside llama.cpp's default, and all others in their order.",
    "python": "After the run: where the time of a token goes in each engine.",
    "engines": "After the run: the speed of every engine with one user and with many, beside this pool.",
    "users": "After the run: how many users can be served at once, and what limits them.",
    "embedding": "After the run: the fastest backend beside float32, and how far its vectors differ.",
}
LINES = ("40,118 130,92 220,62 310,38", "40,126 130,112 220,98 310,92", "40,130 130,122 220,114 310,108")
BARS = (236, 188, 164, 120, 92)
CONTROL = {"users": "good enough", "python": "slowest", "engines": "this pool"}
"""What the dashed line, or the last bar, is called where that is not the control."""

GREY, ACCENT = "#8B949E", "#5B83D6"
"""Colours that stand out from the background of both themes."""

STYLE = """<style>
.run-sketch { margin: 0; padding: 12px 16px; border: 1px dashed #8886; border-radius: 6px; max-width: 560px; }
.run-sketch img { display: block; width: 100%; height: auto; aspect-ratio: 360 / 160; }
.run-sketch figcaption { font-size: 0.87rem; opacity: 0.75; margin-top: 8px; }
</style>"""


def show(question: Question) -> None:
    """Draw the sketch with what it will be."""
    st.html(
        f'{STYLE}<figure class="run-sketch"><img alt="Sketch of a chart" src="{data_address(picture(question))}">'
        f"<figcaption>{CAPTIONS[question]}</figcaption></figure>"
    )


def picture(question: Question) -> str:
    """Return the sketch as SVG: lines, or bars where configurations are ranked."""
    drawn = (_bars if question in ("settings", "python") else _lines)(CONTROL.get(question, "control"))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 360 160" font-family="sans-serif" font-size="11" '
        f'fill="{GREY}"><path d="M40 12V144H344" fill="none" stroke="{GREY}"/>{drawn}</svg>'
    )


def _lines(control: str) -> str:
    """Return lines with their points, the first one best, over a dashed line."""
    parts = [
        f'<path d="M40 134H344" stroke="{GREY}" stroke-dasharray="4 4"/>'
        f'<text x="344" y="130" text-anchor="end">{control}</text>'
        '<text x="316" y="30" text-anchor="middle">best</text>'
    ]
    for place, line in enumerate(LINES):
        colour = GREY if place else ACCENT
        points = [point.split(",") for point in line.split()]
        dots = "".join(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>' for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}')
    return "".join(parts)


def _bars(control: str) -> str:
    """Return bars from the best to the last."""
    bars = [
        f'<rect x="40" y="{20 + 25 * place}" width="{width}" height="14" rx="2" fill="{GREY if place else ACCENT}"/>'
        for place, width in enumerate(BARS)
    ]
    return f'{"".join(bars)}<text x="284" y="31">best</text><text x="140" y="131">{control}</text>'
