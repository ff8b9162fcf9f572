"""Colours of charts in each theme, and the script in the head of the page that exchanges them on a switch of theme."""

from pathlib import Path

from pages.parts.offline_file import json_block, option

THEMES = ("light", "dark")
_SCRIPT = Path(__file__).with_suffix(".js").read_text("utf-8")


def of_theme(theme: str) -> list[str]:
    """Return the colours that charts have in the theme "light" or "dark": of things of their own, then the ramp."""
    return [*(option(theme, "chartCategoricalColors") or ()), *(option(theme, "chartSequentialColors") or ())]


def head() -> bytes:
    """Return the tags for the head of the page."""
    themes = {
        theme: {
            "background": str(option(theme, "backgroundColor")).upper(), "colours": [*map(str.upper, of_theme(theme))],
        }
        for theme in THEMES
    }  # fmt: skip
    return f"{json_block(themes, 'chart-colours')}<script>{_SCRIPT}</script>".encode()
