"""Sketch of a run's answer, shown beside a plan while its question has no run yet."""

import streamlit as st

from engine.bench.planning.plan import Question

TOLD: dict[Question, str] = {
    "speed": "After the run: the best configuration beside the control, and speed by the number of sequences.",
    "settings": "After the run: the best settings beside llama.cpp's default, and all others in their order.",
    "python": "After the run: where the time of a token goes in each runtime.",
    "users": "After the run: how many users can be served at once, and what limits them.",
    "embedding": "After the run: the fastest backend beside float32, and how far its vectors differ.",
}
LINES = ("40,118 130,92 220,62 310,38", "40,126 130,112 220,98 310,92", "40,134 130,130 220,128 310,127")
BARS = (236, 188, 164, 120, 92)
STYLE = """<style>
.run-sketch { margin: 0; padding: 12px 16px; border: 1px dashed #8886; border-radius: 6px; max-width: 560px; }
.run-sketch svg { display: block; width: 100%; height: auto; aspect-ratio: 360 / 160; }
.run-sketch figcaption { font-size: 0.87rem; opacity: 0.75; margin-top: 8px; }
.run-sketch :is(polyline, .axis) { fill: none; stroke: #8B949E; stroke-width: 1.5; }
.run-sketch circle, .run-sketch rect { fill: #8B949E; opacity: 0.45; }
.run-sketch .best { stroke: light-dark(#2B59C3, #8FB0FF); stroke-width: 2; }
.run-sketch :is(circle, rect).best { fill: light-dark(#2B59C3, #8FB0FF); opacity: 1; stroke: none; }
.run-sketch .control { stroke-dasharray: 4 4; }
.run-sketch text { fill: currentColor; font-size: 11px; opacity: 0.75; }
</style>"""


def show(question: Question) -> None:
    """Draw the sketch with what it will be."""
    drawn = _bars() if question in ("settings", "python") else _lines(has_limit=question == "users")
    words = TOLD[question]
    st.html(
        f'{STYLE}<figure class="run-sketch"><svg viewBox="0 0 360 160" role="img" aria-label="Sketch of a chart">'
        f'<path class="axis" d="M40 12V144H344"/>{drawn}</svg><figcaption>{words}</figcaption></figure>'
    )


def _lines(*, has_limit: bool) -> str:
    """Return lines with their points, the first one best; `has_limit` with what is still good enough."""
    parts = []
    for number, line in enumerate(LINES):
        name = "best" if number == 0 else ""
        dots = (
            f'<circle class="{name}" cx="{x}" cy="{y}" r="4"/>' for x, y in (one.split(",") for one in line.split())
        )
        parts.append(f'<polyline class="{name}" points="{line}"/>{"".join(dots)}')
    words = "good enough" if has_limit else "control"
    control = f'<path class="axis control" d="M40 134H344"/><text x="344" y="128" text-anchor="end">{words}</text>'
    return f'{control}{"".join(parts)}<text x="316" y="30" text-anchor="middle">best</text>'


def _bars() -> str:
    """Return bars from the best to the control."""
    bars = (
        f'<rect class="{"best" * (place == 0)}" x="40" y="{20 + 25 * place}" width="{width}" height="14" rx="2"/>'
        for place, width in enumerate(BARS)
    )
    return f'{"".join(bars)}<text x="284" y="31">best</text><text x="140" y="131">control</text>'
