"""Offline HTML file: one document that loads nothing from outside and runs only the scripts that it was made with."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import msgspec
import streamlit as st

from pages.parts.labels import one_line

HERE = Path(__file__).parent
STYLES = {
    "background": "backgroundColor",
    "surface": "secondaryBackgroundColor",
    "text": "textColor",
    "muted": "grayTextColor",
    "border": "borderColor",
    "link": "linkColor",
    "primary": "primaryColor",
    "good": "greenTextColor",
    "bad": "orangeTextColor",
}
"""CSS variables, and the option of the workbench's theme that each is set from."""

_ESCAPES = {"<": "\\u003c", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def document(
    title: str, body: Iterable[str], *, style: str = "", scripts: Sequence[str] = (), has_inline_styles: bool = False
) -> bytes:
    """Return the file. `body` is HTML, whose texts from people and models `text_of` or `json_block` wrote.

    Its content security policy lets a browser load nothing, and run none but `scripts`, which stand at its end.
    has_inline_styles: elements have `style` attributes, or the scripts make style sheets.
    """
    sheet = f"{_variables()}{(HERE / 'offline_file.css').read_text('utf-8')}{style}"
    script_sources = " ".join(map(_source, scripts)) or "'none'"
    style_source = "'unsafe-inline'" if has_inline_styles else _source(sheet)
    policy = (
        f"default-src 'none'; script-src {script_sources}; style-src {style_source}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f'<meta name="viewport" content="width=device-width"><title>{text_of(title)}</title>',
        f"<style>{_normal(sheet)}</style></head><body>",
        *body,
        *(f"<script>{_normal(script)}</script>" for script in scripts),
        "</body></html>",
    ]
    return "\n".join(parts).encode()


def text_of(text: Any) -> str:
    """Return a text of a person or a model as HTML on one line."""
    return escape(one_line(str(text)))


def json_block(value: Any, name: str, *, attribute: str = "id") -> str:
    """Return an element that holds JSON for the scripts, which nothing in it can leave; NaN becomes null."""
    plain = msgspec.json.encode(value).decode()
    for character, escaped in _ESCAPES.items():
        plain = plain.replace(character, escaped)
    return f'<script type="application/json" {attribute}="{escape(name)}">{plain}</script>'


def option(theme: str, name: str) -> Any:
    """Return an option of the workbench's theme "light" or "dark"."""
    return st.get_option(f"theme.{theme}.{name}")


def _source(content: str) -> str:
    """Return the source expression that allows one inline script or style sheet."""
    digest = hashlib.sha256(_normal(content).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _normal(content: str) -> str:
    """Return the content with the line breaks that an HTML parser makes of it, whose hash a browser compares."""
    return content.replace("\r\n", "\n").replace("\r", "\n")


def _variables() -> str:
    """Return the theme's colours as CSS variables."""
    light, dark = (
        "".join(f"--{name}:{option(theme, of)};" for name, of in STYLES.items() if option(theme, of))
        for theme in ("light", "dark")
    )
    return f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
