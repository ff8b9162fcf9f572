"""Text from people and models where it is shown verbatim on one line."""

import sys

from pages.parts.plain import visible


def test_no_character_directs_or_breaks_a_line_wherever_it_stands() -> None:
    for alone in map(chr, range(sys.maxunicode + 1)):
        shown = visible(alone)
        assert len(shown) == 1 and visible(f"a{alone}b") == f"a{shown}b"
        assert shown.isprintable() or shown == alone, ascii(alone)
        assert shown != alone or alone not in "\n\r\t\x00\x1b\u202e\u2028\u200b\ud800\ue000"
