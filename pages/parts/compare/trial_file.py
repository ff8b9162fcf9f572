"""Answers side by side as one offline HTML file: every token with its colour and candidates, without scripts."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from engine.notebook import to_html
from engine.workbench.trials import Trial
from pages.parts.labels import one_line

STYLE = Path(__file__).with_name("offline.css")
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
GRID = ".beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); gap: 24px; }"


def as_file(sentence: str, trials: Sequence[tuple[str, str, Trial]]) -> bytes:
    """Return the file: the sentence, then each finished trial under its label, with the remark on its speeds.

    All text from people and models is escaped.
    """
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width"><title>Comparison</title>',
        f"<style>{STYLE.read_text('utf-8')}{GRID}</style></head><body><h1>{_text(sentence)}</h1>",
        f'<div class="beside">{"".join(_arm(*one) for one in trials)}</div></body></html>',
    ]
    return "\n".join(parts).encode()


def _arm(label: str, mark: str, trial: Trial) -> str:
    told = " · ".join(one for one in (trial.model.name, trial.model.quantisation, mark) if one)
    strip = to_html(trial.completion) if trial.completion else ""
    return f'<section><h2>{_text(label)}</h2><p class="muted">{_text(told)}</p>{strip}</section>'


def _text(text: str) -> str:
    return escape(one_line(text))
