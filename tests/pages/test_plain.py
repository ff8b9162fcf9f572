"""Text from people and models where it is shown verbatim on one line."""

import sys
import unicodedata
from collections.abc import Iterator
from itertools import groupby

from pages.parts.plain import visible


def characters() -> Iterator[str]:
    """The first 12,288 characters, and of the others the ends of each run of one category."""
    yield from map(chr, range(0x3000))
    for _category, run in groupby(map(chr, range(0x3000, sys.maxunicode + 1)), unicodedata.category):
        alike = list(run)
        yield from (alike[0], alike[-1])


def test_no_character_directs_or_breaks_a_line_wherever_it_stands() -> None:
    for alone in characters():
        shown = visible(alone)
        assert len(shown) == 1 and visible(f"a{alone}b") == f"a{shown}b"
        assert shown.isprintable() or shown == alone, ascii(alone)
        assert shown != alone or alone not in "\n\r\t\x00\x1b\u202e\u2028\u200b\ud800\ue000"
