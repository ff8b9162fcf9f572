"""Contrast of the strip's colours in both themes, by WCAG 2.2: 4.5 for text (1.4.3), 3 for graphics (1.4.11)."""

import re
import tomllib
from pathlib import Path

import pytest

from engine import palette
from pages.parts import token_strip

ROOT = Path(__file__).parents[2]
THEME = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text("utf-8"))["theme"]
STYLE = token_strip.style()
TEXT, GRAPHIC = 4.5, 3.0
THEMES = ("light", "dark")

Colour = tuple[float, float, float]


def colour(text: str) -> Colour:
    red, green, blue = (int(text[start : start + 2], 16) for start in (1, 3, 5))
    return red, green, blue


def luminance(of: Colour) -> float:
    parts = [value / 255 for value in of]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Colour, other: Colour) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def over(top: Colour, opacity: float, below: Colour) -> Colour:
    red, green, blue = (a * opacity + b * (1 - opacity) for a, b in zip(top, below, strict=True))
    return red, green, blue


def colours(theme: str) -> dict[str, Colour]:
    """Every colour of the strip by its name: the style sheet's own variables, and the theme's."""
    own = re.search(r"\.root \{([^}]*)\}", STYLE)
    assert own is not None
    rules = [own[1], *re.findall(rf'\.root\[data-theme="{theme}"\] \{{([^}}]*)\}}', STYLE)]
    found = {name: value for rule in rules for name, value in re.findall(r"--([\w-]+): ?(#\w{6});", rule)}
    for name in ("backgroundColor", "textColor", "linkColor", "primaryColor"):
        found[name] = THEME[theme][name]
    return {name: colour(value) for name, value in found.items()}


def opacity(rule: str) -> float:
    found = re.search(rf"{re.escape(rule)} \{{ opacity: ([\d.]+);", STYLE)
    assert found is not None, rule
    return float(found[1])


def test_black_on_white_is_21_to_1() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast(colour("#777777"), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", ["textColor", "muted", "linkColor", "error"])
def test_words_stand_out_from_the_page_and_from_a_surface(theme: str, name: str) -> None:
    known = colours(theme)
    for behind in ("backgroundColor", "surface"):
        assert contrast(known[name], known[behind]) >= TEXT, behind


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("letter", ["s", "q"])
def test_words_stand_out_from_every_band(theme: str, letter: str) -> None:
    known = colours(theme)
    for band in range(1, palette.NUM_BANDS):
        assert contrast(known[f"{letter}{band}t"], known[f"{letter}{band}"]) >= TEXT, band


@pytest.mark.parametrize("theme", THEMES)
def test_candidates_that_were_cut_can_be_read(theme: str) -> None:
    known = colours(theme)
    faded = over(known["textColor"], opacity(".cut > td > *, .cut > .number"), known["backgroundColor"])
    assert contrast(faded, known["backgroundColor"]) >= TEXT


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", ["linkColor", "primaryColor", "spark", "q5"])
def test_bars_the_focus_and_thumbs_stand_out(theme: str, name: str) -> None:
    known = colours(theme)
    assert contrast(known[name], known["backgroundColor"]) >= GRAPHIC


def test_marks_that_say_what_a_token_is_are_not_faded() -> None:
    assert opacity(".mark.break::before") < 1  # the break itself is there to be seen
    assert not re.search(r"\.mark(\.(byte|control|name))?::before \{[^}]*opacity", STYLE)
