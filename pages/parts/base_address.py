"""Middleware that writes the server's base URL into Streamlit's page.

Without it, the page first requests paths below its own URL and logs two 404s.
"""

from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pages.parts import chart_colours, component, first_paint, front_end, palette, token_strip

TITLE = b"<title>Streamlit</title>"
HEAD = b"<title>Logitbench</title><script>window.__streamlit = { BACKEND_BASE_URL: location.origin };</script>"
KEYS = f"<script>{Path(__file__).with_name('own_keys.js').read_text('utf-8')}</script>".encode()
FIRST = palette.COMPONENT, token_strip.COMPONENT
"""Components on every page, and on the page of the first visit."""


def head() -> bytes:
    """Return what stands in place of the page's title."""
    modules = (*front_end.first_modules(), *component.modules(FIRST))
    loaded = first_paint.modules_first(modules, front_end.imported_first())
    return HEAD + loaded + chart_colours.head() + KEYS + first_paint.HEAD


class BaseAddress:
    """ASGI middleware that adds the base URL to the head of Streamlit's page and replaces the page's title.

    The page is recognised by its title.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._head = app, head()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if not _asks_for_a_page(scope):
            await self._app(scope, receive, send)
            return
        del MutableHeaders(scope=scope)["accept-encoding"]  # a compressed page could not be edited
        start: Message | None = None
        body = b""

        async def send_changed(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and _is_page(message):
                start = message
            elif start is None:
                await send(message)
            else:
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    page = body.replace(TITLE, self._head, 1)
                    MutableHeaders(raw=start["headers"])["content-length"] = str(len(page))
                    await send(start)
                    await send({"type": "http.response.body", "body": page})

        await self._app(scope, receive, send_changed)


def middleware() -> list[Middleware]:
    """Return the middleware for `st.App`."""
    return [Middleware(BaseAddress)]


def _asks_for_a_page(scope: Scope) -> bool:
    """Return True for requests that a browser opens as a page; scripts, styles and data have other Accept headers."""
    return (
        scope["type"] == "http" and scope["method"] == "GET" and "text/html" in Headers(scope=scope).get("accept", "")
    )


def _is_page(message: Message) -> bool:
    headers = Headers(raw=message["headers"])
    return message["status"] == 200 and headers.get("content-type", "").startswith("text/html")
