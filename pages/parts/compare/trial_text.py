"""A text beside its reference as HTML: what only it has is underlined, what it lacks struck through."""

import html
import unicodedata
from collections.abc import Iterable

from engine.comparing.alignment import Segment, SegmentKind

_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co"})
_TAGS: dict[SegmentKind, str] = {"same": "span", "added": "ins", "missing": "del"}
STYLE = """
<style>
.beside { white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.75; unicode-bidi: plaintext; }
.beside ins { background: color-mix(in srgb, currentColor 10%, transparent); text-decoration: underline 1px;
  text-underline-offset: 4px; border-radius: 2px; }
.beside del { opacity: 0.45; }
</style>
"""


def as_html(segments: Iterable[Segment]) -> str:
    """The segments one after the other; every character stands there as text."""
    return f'{STYLE}<div class="beside">{"".join(_marked(*segment) for segment in segments)}</div>'


def _marked(kind: SegmentKind, text: str) -> str:
    """The text in the tag of its kind, white space before it left outside."""
    words = text.lstrip()
    return f"{_escaped(text[: len(text) - len(words)])}<{_TAGS[kind]}>{_escaped(words)}</{_TAGS[kind]}>"


def _escaped(text: str) -> str:
    """Line breaks and tabulators stay; other control and direction characters become the replacement character."""
    return html.escape("".join(one if one in "\n\t" or _is_seen(one) else "\ufffd" for one in text))


def _is_seen(character: str) -> bool:
    return unicodedata.category(character) not in _INVISIBLE
