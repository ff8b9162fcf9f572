"""Token colours: thresholds and colour ramps, shared by the pages' token strip and the strip in a notebook.

They belong to the engine, not to the pages, because a Completion renders itself in notebooks where no pages are
installed. Yellow to red always means surprise at the chosen token; blue is used for every other quantity.
"""

from typing import NamedTuple

SURPRISE_P = (0.7, 0.35, 0.15, 0.05, 0.01, 0.001)
"""Minimum token probability of each band, band 0 first; below the last is band 6."""

ENTROPY_BITS = (0.5, 1.5, 2.5, 3.5, 5.0, 7.0)
"""Maximum entropy of each band of Uncertainty, in bits; above the last is band 6."""

TIME_RATIO = (1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
"""Maximum of each band of Time, as the ratio of a token's time to the median of its trial; above the last is band 6."""

CHANGE_NATS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Maximum change of a log-probability in each band of Change, up or down, in nats; above the last is band 6."""

NUM_BANDS = 7


class Ramp(NamedTuple):
    """Background colours of bands 1 to 6 (band 0 has none) and the text colour on each."""

    backgrounds: tuple[str, ...]
    texts: tuple[str, ...]


_DARK_TEXT, _LIGHT_TEXT = "#1F2328", "#E6E8EB"

SURPRISE = {
    "light": Ramp(("#FFF6D6", "#FFE7A3", "#FFCF73", "#FFAE57", "#F98A5B", "#B3261E"), (_DARK_TEXT,) * 5 + ("#FFFFFF",)),
    "dark": Ramp(
        ("#2E2A17", "#473A14", "#644A12", "#86560F", "#C9762B", "#FF8A70"), (_LIGHT_TEXT,) * 4 + ("#14161A",) * 2
    ),
}
QUANTITY = {
    "light": Ramp(
        ("#EAF0FC", "#D3DFF8", "#B4C8F1", "#93AFEA", "#446BCE", "#163373"), (_DARK_TEXT,) * 4 + ("#FFFFFF",) * 2
    ),
    "dark": Ramp(
        ("#1A2233", "#21304F", "#2B4273", "#375596", "#8FB0FF", "#D6E2FF"), (_LIGHT_TEXT,) * 4 + ("#14161A",) * 2
    ),
}


def surprise_band(p: float) -> int:
    """Return the band, 0 (expected) to 6 (very surprising), of a token of probability p."""
    return sum(p < threshold for threshold in SURPRISE_P)


def variables(theme: str) -> str:
    """Return the CSS custom properties of one theme, "light" or "dark".

    --s1 to --s6 and --q1 to --q6; text colours have the suffix t.
    """
    lines = []
    for letter, ramp in (("s", SURPRISE[theme]), ("q", QUANTITY[theme])):
        for band, (background, text) in enumerate(zip(*ramp, strict=True), start=1):
            lines.append(f"--{letter}{band}:{background};--{letter}{band}t:{text};")
    return "".join(lines)
