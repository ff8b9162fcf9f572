"""The history as a download that streams: the links to it, and the route that answers them."""

import asyncio
from collections.abc import Callable, Iterable
from itertools import chain
from urllib.parse import urlencode

import streamlit as st
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from engine.errors import EngineError
from engine.history.archive_pieces import archive_in_pieces
from engine.workbench import Workbench

PATH, FILE = "/logitbench/export", "logitbench-history.zip"
KINDS = {"runs": "run_ids", "trials": "trial_ids"}


def link(label: str, help: str, *, is_quiet: bool = False, **ids: Iterable[str]) -> None:
    """Draw the link to an archive of these `runs` and `trials`, of everything where neither is given."""
    asked = {kind: ",".join(ids[kind]) for kind in KINDS if kind in ids}
    st.link_button(
        label, f"{PATH}?{urlencode(asked)}" if asked else PATH, icon=":material/download:", help=help,
        type="tertiary" if is_quiet else "secondary",
    )  # fmt: skip


def routes(workbench: Callable[[], Workbench]) -> list[BaseRoute]:
    """The route for app.py."""

    async def export(request: Request) -> Response:
        asked = request.query_params
        history = workbench().history
        if history is None:
            return PlainTextResponse("The history cannot be used; the reason stands on the page.", 503)
        ids = {name: asked[kind].split(",") for kind, name in KINDS.items() if kind in asked}
        pieces = archive_in_pieces(history, **ids)
        try:
            first = await asyncio.to_thread(next, pieces)
        except EngineError as error:
            return PlainTextResponse(str(error), 409)
        named = {"Content-Disposition": f'attachment; filename="{FILE}"', "Cache-Control": "no-store"}
        return StreamingResponse(chain([first], pieces), media_type="application/zip", headers=named)

    return [Route(PATH, export)]
