"""Head of the page: what lets a first visit paint once, in place, instead of piece by piece.

Streamlit learns its layout, its sidebar and its widgets' scripts from the server's messages, one after the other, and
everything drawn until then moves. Here the sidebar's room and the page's width are fixed from the start, and the
scripts of widgets are fetched beside the first ones.
"""

import json
from contextlib import suppress
from functools import cache
from pathlib import Path

import streamlit

STATIC = Path(streamlit.__file__).parent / "static"
HERE = Path(__file__).parent
WIDGETS = ("/components/widgets/", "/components/elements/")
LARGEST = 64 * 1024
"""Bytes of a script that is fetched before a page asks for it; charts and editors are larger."""


@cache
def head() -> bytes:
    """Return the style, the script and the links for the head of Streamlit's page."""
    style, script = ((HERE / f"first_paint.{kind}").read_text("utf-8") for kind in ("css", "js"))
    fonts = [f'<link rel="preload" href="/{name}" as="font" type="font/woff2" crossorigin>' for name in _icon_fonts()]
    scripts = [f'<link rel="modulepreload" href="/{name}" crossorigin>' for name in _widget_scripts()]
    return f"<style>{style}</style><script>{script}</script>{''.join((*fonts, *scripts))}".encode()


def _icon_fonts() -> list[str]:
    return sorted(str(path.relative_to(STATIC)) for path in STATIC.glob("static/media/MaterialSymbols-*.woff2"))


def _widget_scripts() -> list[str]:
    """Return the small scripts of Streamlit's manifest that draw widgets; empty where it has no such manifest."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        parts = json.loads((STATIC / "manifest.json").read_bytes())
        drawn = [part["file"] for name, part in parts.items() if any(each in name for each in WIDGETS)]
        return sorted(name for name in drawn if (STATIC / name).stat().st_size <= LARGEST)
    return []
