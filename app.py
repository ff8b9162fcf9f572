"""Logitbench application: `streamlit run app.py` serves the pages and the token socket on one port."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware

from engine import private_files, workbench
from engine.api import connections, log_limit
from engine.api.gate import Gate
from engine.api.openai.server import ApiServer, server_of
from engine.errors import ConfigError
from engine.process.limits import raise_open_files, return_freed_memory
from engine.settings import Settings
from engine.shutdown import Shutdown
from pages.parts import base_address, component, exports, front_end, live
from pages.parts.palette import route as palette_route
from pages.parts.traffic import call_feed

PAGES = Path(__file__).resolve().parent / "pages"


@asynccontextmanager
async def lifespan(_: st.App) -> AsyncIterator[None]:
    """Open the workbench, which loads the model in the background; on exit close it and every worker.

    The server would wait for every download before it exits, so a signal starts the closing as well.
    """
    front_end.answer_at_once()
    connections.limit(asyncio.get_running_loop(), access=settings.access, num_files=num_files)
    opened = await asyncio.to_thread(workbench.current)
    api = server_of(opened)
    api.pages = address
    if settings.api_port:
        start(api, settings.api_port)

    def close() -> None:
        api.stop()
        opened.close()

    Shutdown(close).install(signal.SIGINT, signal.SIGTERM)
    try:
        yield
    finally:
        await asyncio.to_thread(close)


def start(api: ApiServer, port: int) -> None:
    """Start the API; where that fails, print why: the pages work without it."""
    try:
        api.start(port)
    except ConfigError as error:
        print(f"The API was not started: {error}", file=sys.stderr)


def address() -> str:
    """Return the URL of the start page; valid once the server has its port."""
    return f"http://{st.get_option('server.address')}:{st.get_option('server.port')}/"


return_freed_memory()
num_files = raise_open_files()
log_limit.install()
# Streamlit prepends its script's folder to sys.path for each run and removes it afterwards, unless it is already in
# the path. The removal makes a concurrent search for a module or a package's version in another thread skip an entry
# and find nothing.
sys.path.append(str(PAGES))
try:
    settings = Settings.from_environment()
except ConfigError as error:
    sys.exit(f"error: {error}")
private_files.begin()
private_files.tighten(settings.home)
gate = Middleware(Gate, access=settings.access, home=settings.home, address=address)
app = st.App(
    PAGES / "router.py",
    lifespan=lifespan,
    routes=[
        *live.routes(lambda: workbench.current().trials, workbench.current, lambda: workbench.current().words),
        *call_feed.routes(lambda: server_of(workbench.current()).traffic),
        *exports.routes(workbench.current),
        *palette_route.routes(workbench.current),
        *component.routes(),
    ],
    middleware=[gate, *front_end.middleware(), *base_address.middleware()],
)
