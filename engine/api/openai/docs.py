"""Documentation of the API for programs (/openapi.json) and people (/docs): one page without scripts.

Both are open without a key, as they are the same for every server and tell nothing of its model or its calls; a browser
could not send a key, and programs that generate clients read the description before they have one.
"""

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from jinja2 import Environment
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from engine.api.openai.openapi import document
from engine.files import read_regular

TEMPLATE = Path(__file__).with_name("docs.html")
REF = "$ref"
WORDS = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false", "null": "null"}


class Field(NamedTuple):
    """Property of a Struct as the page shows it. kind: its type in words, as HTML."""

    name: str
    kind: Markup
    default: str


async def openapi_json(_request: Request) -> Response:
    """GET /openapi.json."""
    return Response(_document(), media_type="application/json")


async def docs_page(_request: Request) -> Response:
    """GET /docs."""
    page, style = _page()
    headers = {
        "content-security-policy": f"default-src 'none'; style-src '{style}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
    return HTMLResponse(page, headers=headers)


@cache
def _document() -> bytes:
    return msgspec.json.encode(document())


@cache
def _page() -> tuple[str, str]:
    """Return the page and the hash of its style sheet, as the content security policy names it."""
    text = read_regular(TEMPLATE).decode()
    style = text.partition("<style>")[2].partition("</style>")[0]
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return page.render(document=document(), fields=fields, struct_of=struct_of), f"sha256-{digest}"


def struct_of(content: dict[str, Any]) -> str:
    """Return the name of the Struct that a body or an answer has; empty where it has none."""
    schemas = [given.get("schema", {}) for given in content.values()]
    return next((_name(schema[REF]) for schema in schemas if REF in schema), "")


def fields(schema: dict[str, Any]) -> list[Field]:
    """Return the properties of a Struct's schema."""
    required = schema.get("required", [])
    return [
        Field(name, kind(one), "required" if name in required else _default(one))
        for name, one in schema["properties"].items()
    ]


def kind(schema: dict[str, Any]) -> Markup:
    """Return a type in words with its limits, as HTML that links to the Structs."""
    if REF in schema:
        return Markup('<a href="#{0}">{0}</a>').format(_name(schema[REF]))
    if "anyOf" in schema:
        return Markup(", ").join(kind(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "enum" in schema:
        return Markup(", ").join(map(repr, schema["enum"]))
    if schema.get("type") == "array":
        most = f", at most {schema['maxItems']:,}" if "maxItems" in schema else ""
        return Markup("list of ({}){}").format(kind(schema.get("items", {})), most)
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return Markup("object of ({})").format(kind(values)) if isinstance(values, dict) else Markup("object")
    return Markup(WORDS.get(schema.get("type", ""), "any") + _limits(schema))


def _limits(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and high is None:
        return ""
    return f" up to {high:,}" if low is None else f" from {low:,}" + ("" if high is None else f" to {high:,}")


def _default(schema: dict[str, Any]) -> str:
    given = schema.get("default")
    return "" if given is None else msgspec.json.encode(given).decode()


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]
