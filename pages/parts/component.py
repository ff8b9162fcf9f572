"""Components of the pages: the browser loads the module of each by its address, once, and every mount only names it.

Streamlit sends the whole script of a component with each mount: 330 kB for a trial with its branches.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import streamlit as st
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from pages.parts.front_end import FOR_EVER

PATH = "/logitbench/modules"
_LOADER = """\
const module = await import(new URL("{path}", location.origin).href);
export default module.default;
"""
_modules: dict[str, str] = {}


def component(name: str, *, js: str, css: str) -> Callable[..., Any]:
    """Return the Streamlit component of a name, which calls the default export of the module `js`."""
    path = f"{PATH}/{name}.{hashlib.sha256(js.encode()).hexdigest()[:16]}.js"
    _modules[path] = js
    declared: Callable[..., Any] = st.components.v2.component(name, js=_LOADER.format(path=path), css=css)
    return declared


def modules(names: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses of the modules of these components."""
    wanted = tuple(f"{PATH}/{name}." for name in names)
    return tuple(path for path in _modules if path.startswith(wanted))


def routes() -> list[BaseRoute]:
    """Return the route for app.py."""

    async def module(request: Request) -> Response:
        js = _modules.get(request.url.path)
        if js is None:
            return PlainTextResponse("There is no such module.", 404)
        return Response(js, media_type="text/javascript", headers={"Cache-Control": FOR_EVER})

    return [Route(f"{PATH}/{{name}}", module)]
