"""Surprise of a trial's tokens as a small picture: a bar for each, coloured where a token was very surprising."""

import math
from collections.abc import Sequence
from html import escape

from engine.palette import SURPRISE, surprise_band
from engine.units import counted, digits
from pages.parts.images import data_address

FULL_BITS = 10.0
"""Surprise of a bar of full height."""
HEIGHT, LEAST = 100, 5
PLAIN, SURPRISING = 0, (5, 6)
"""Bands of surprise with a colour of their own, as below the token strip; all others are drawn as PLAIN."""

GREY = "#8B929B"


def sparkline(bits: Sequence[float], num_tokens: int) -> str:
    """Return the picture as HTML, with its text for screen readers. bits: of each bar, NaN where nothing is known."""
    described = escape(_described(bits, num_tokens))
    return f'<img class="ov-spark" alt="{described}" src="{data_address(_drawn(bits))}">'


def _drawn(bits: Sequence[float]) -> str:
    paths: dict[int, list[str]] = {band: [] for band in (PLAIN, *SURPRISING)}
    for column, value in enumerate(bits):
        if math.isfinite(value):
            band = surprise_band(2.0**-value)
            height = max(LEAST, round(min(value / FULL_BITS, 1.0) * HEIGHT))
            paths[band if band in paths else PLAIN].append(f"M{column} {HEIGHT}v-{height}h.8v{height}z")
    drawn = "".join(f'<path class="b{band}" d="{"".join(parts)}"/>' for band, parts in paths.items() if parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {max(len(bits), 1)} {HEIGHT}" '
        f'preserveAspectRatio="none"><style>.b{PLAIN}{{fill:{GREY}}}{_colours("light")}'
        f"@media(prefers-color-scheme:dark){{{_colours('dark')}}}</style>{drawn}</svg>"
    )


def _colours(theme: str) -> str:
    return "".join(f".b{band}{{fill:{SURPRISE[theme].backgrounds[band - 1]}}}" for band in SURPRISING)


def _described(bits: Sequence[float], num_tokens: int) -> str:
    known = [value for value in bits if math.isfinite(value)]
    if not known:
        return "No surprise was recorded"
    return f"Surprise of {counted(num_tokens, 'token')}: at most {digits(max(known))} bits"
