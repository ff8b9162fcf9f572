"""Faster delivery of Streamlit's own files and messages: a first visit requests some 130 files, each after the one that
names it.

Measured with an empty browser cache, until the table of a long history is visible: 2.3 s with Streamlit's own handler,
1.7 s from memory.
"""

import mimetypes
import os
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec
import psutil
import streamlit
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

STATIC = Path(streamlit.__file__).parent / "static"
FOR_EVER = "public, immutable, max-age=31536000"
FIRST = (
    "BidiComponent", "Button", "ButtonGroup", "ChatInput", "Checkbox", "DownloadButton", "FileUploader", "Html",
    "LinkButton", "MenuButton", "Metric", "Multiselect", "NumberInput", "PageLink", "Progress", "Selectbox", "Spinner",
    "TextArea", "TextInput",
)  # fmt: skip
"""Streamlit's elements whose modules the browser has before the page is drawn.

An element whose module comes late changes its height when it comes, and moves what stands below it: its placeholder is
as high as a button, whatever it stands for. Charts and tables are left out, whose modules are large.
"""


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """Entry of Streamlit's manifest: a file of the front end; imports: other entries that it loads first."""

    file: str
    imports: tuple[str, ...] = ()
    css: tuple[str, ...] = ()
    assets: tuple[str, ...] = ()
    is_dynamic_entry: bool = False


def answer_at_once() -> None:
    """Send written data at once on all future connections; call at the start of app.py.

    Streamlit opens its socket without naming TCP, whereupon asyncio leaves TCP_NODELAY off: data written in two pieces,
    as every file and many messages are, then waits 40 ms for the browser to acknowledge the first. Connections inherit
    the option from the listening socket.
    """
    with suppress(OSError, psutil.Error):
        for connection in psutil.Process().net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                with socket.socket(fileno=os.dup(connection.fd)) as listening:
                    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def first_modules() -> tuple[str, ...]:
    """Return the addresses of the modules of FIRST, relative to a page; none for elements unknown to the manifest."""
    return tuple(f"./{part.file}" for part in _first())


def imported_first() -> tuple[str, ...]:
    """Return the addresses of all that the modules of FIRST import, themselves included, each once."""
    parts, waiting = _manifest(), _first()
    found: dict[str, None] = {}
    while waiting:
        part = waiting.pop()
        if part.file not in found:
            found[part.file] = None
            waiting.extend(parts[key] for key in part.imports if key in parts)
    return tuple(f"./{name}" for name in found)


def _first() -> list[Part]:
    return [part for key, part in _manifest().items() if part.is_dynamic_entry and Path(key).stem in FIRST]


def middleware() -> list[Middleware]:
    """Return the middleware for app.py."""
    return [Middleware(FromMemory)]


class FromMemory:
    """ASGI middleware that serves the files of Streamlit's manifest from memory and passes on all other requests.

    Their names identify their content, so they never change. Streamlit's own handler looks up each on disk in another
    thread.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._names = app, _names()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        name = scope["path"].removeprefix("/") if scope["type"] == "http" and scope["method"] == "GET" else ""
        answer = _answer(name) if name in self._names else self._app
        await answer(scope, receive, send)


def _names() -> frozenset[str]:
    """Return the files of the manifest; empty if this Streamlit version has no such manifest."""
    named = {name for part in _manifest().values() for name in (part.file, *part.css, *part.assets)}
    return frozenset(name for name in named if (STATIC / name).is_file())


def _manifest() -> dict[str, Part]:
    """Return the parts of Streamlit's front end by their source; empty if this version has no such manifest."""
    try:
        return msgspec.json.decode((STATIC / "manifest.json").read_bytes(), type=dict[str, Part])
    except (OSError, msgspec.DecodeError):
        return {}


@cache
def _answer(name: str) -> Response:
    kind = mimetypes.guess_type(name)[0]
    return Response((STATIC / name).read_bytes(), media_type=kind, headers={"Cache-Control": FOR_EVER})
