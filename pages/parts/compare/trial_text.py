"""Text diff against a reference as HTML: added text is underlined, missing text struck through."""

from collections.abc import Iterable

from engine.comparing.alignment import Segment, SegmentKind
from pages.parts.plain import escaped_html

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
    """Return the segments as HTML in sequence; all text is escaped."""
    return f'{STYLE}<div class="beside">{"".join(_marked(*segment) for segment in segments)}</div>'


def _marked(kind: SegmentKind, text: str) -> str:
    """Return the text in the tag of its kind, with leading white space outside the tag."""
    words = text.lstrip()
    return f"{escaped_html(text[: len(text) - len(words)])}<{_TAGS[kind]}>{escaped_html(words)}</{_TAGS[kind]}>"
