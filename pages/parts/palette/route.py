"""Route that the command palette asks for its entries."""

import asyncio
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from engine.errors import EngineError, sentence
from engine.workbench import Workbench
from pages.parts.palette.entries import entries

PATH = "/logitbench/find"
_encode = msgspec.json.Encoder().encode


def routes(workbench: Callable[[], Workbench]) -> list[BaseRoute]:
    """Return the route for app.py."""

    async def find(request: Request) -> Response:
        text = request.query_params.get("text", "")
        try:
            found = await asyncio.to_thread(lambda: [entry._asdict() for entry in entries(workbench(), text)])
        except EngineError as error:
            return PlainTextResponse(sentence(error), 409)
        return Response(_encode(found), media_type="application/json", headers={"Cache-Control": "no-store"})

    return [Route(PATH, find)]
