"""Answers side by side as one offline HTML file: every token with its colour and candidates, without scripts."""

from collections.abc import Sequence

from engine.notebook import to_html
from engine.workbench.trials import Trial
from pages.parts.offline_file import document, text_of

GRID = ".beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); gap: 24px; }"


def as_file(sentence: str, trials: Sequence[tuple[str, str, Trial]]) -> bytes:
    """Return the file: the sentence, then each finished trial under its label, with the remark on its speeds.

    All text from people and models is escaped.
    """
    body = f'<h1>{text_of(sentence)}</h1><div class="beside">{"".join(_arm(*one) for one in trials)}</div>'
    return document("Comparison", [body], style=GRID, has_inline_styles=True)


def _arm(label: str, mark: str, trial: Trial) -> str:
    model = " · ".join(one for one in (trial.model.name, trial.model.quantisation, mark) if one)
    strip = to_html(trial.completion) if trial.completion else ""
    return f'<section><h2>{text_of(label)}</h2><p class="muted">{text_of(model)}</p>{strip}</section>'
