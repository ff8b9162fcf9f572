"""Streaming download of the history: the links to it, and the route that serves it."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from itertools import chain
from urllib.parse import urlencode

import streamlit as st
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from engine.errors import EngineError, sentence
from engine.history.archives.pieces import ArchivePieces
from engine.workbench import Workbench

PATH, FILE = "/logitbench/export", "logitbench-history.zip"
MOST_AT_ONCE = 4
"""Archives downloaded at once: each may hold the samples of a whole run."""

KINDS = {"runs": "run_ids", "trials": "trial_ids"}


def link(label: str, help: str, ids: Mapping[str, Iterable[str]], *, is_quiet: bool = False) -> None:
    """Draw the link to an archive of these ids of "runs" and "trials", or of everything if neither is given."""
    asked = {kind: ",".join(ids[kind]) for kind in KINDS if kind in ids}
    st.link_button(
        label, f"{PATH}?{urlencode(asked)}" if asked else PATH, icon=":material/download:", help=help,
        type="tertiary" if is_quiet else "secondary",
    )  # fmt: skip


class Download(StreamingResponse):
    """Streaming response of an archive whose `first` piece is ready; closes `opened` however the response ends."""

    def __init__(self, first: bytes, pieces: ArchivePieces, opened: ExitStack) -> None:
        self._opened = opened
        named = {"Content-Disposition": f'attachment; filename="{FILE}"', "Cache-Control": "no-store"}
        super().__init__(chain([first], pieces), media_type="application/zip", headers=named)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the archive. A disconnected client does not close the iterator, so this closes it."""
        with self._opened:
            await super().__call__(scope, receive, send)


def routes(workbench: Callable[[], Workbench]) -> list[BaseRoute]:
    """Return the route for app.py."""

    slots = threading.BoundedSemaphore(MOST_AT_ONCE)

    async def export(request: Request) -> Response:
        asked = request.query_params
        history = workbench().history
        if history is None:
            return PlainTextResponse("The history cannot be used; the page shows why.", 503)
        ids = {name: asked[kind].split(",") for kind, name in KINDS.items() if kind in asked}
        if not slots.acquire(blocking=False):
            return PlainTextResponse(f"{MOST_AT_ONCE} archives are being downloaded: wait until one of them ends.", 429)
        with ExitStack() as stack:
            stack.callback(slots.release)
            pieces = stack.enter_context(closing(ArchivePieces(history, **ids)))
            try:
                first = await asyncio.to_thread(next, pieces)
            except EngineError as error:
                return PlainTextResponse(sentence(error), 409)
            return Download(first, pieces, stack.pop_all())

    return [Route(PATH, export)]
