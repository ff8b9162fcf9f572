"""The gate in front of the real server: every route that it has, asked by foreign pages and by another user."""

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from engine.api import peers
from engine.api.access_token import AccessToken
from tests.conftest import PATIENT_MS
from tests.e2e.conftest import ROOT, Server, running

pytestmark = pytest.mark.slow

STRANGER = 12345
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
tells_users = pytest.mark.skipif(not peers.can_identify(), reason="this system does not tell whose a connection is")
ROUTES = """
import json, app
print(json.dumps([
    (type(route).__name__, route.path, sorted(getattr(route, "methods", None) or ["GET"]))
    for route in app.app._build_starlette_app().routes
]))
"""
# Another user asks for each address of its standard input, and tells the statuses.
CLIENT = """
import encodings.idna, http.client, json, os, sys
os.setuid(int(sys.argv[1]))
statuses = []
for method, path, headers in json.load(sys.stdin):
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[2]), timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    statuses.append((answer.status, answer.read(300).decode()))
    connection.close()
print(json.dumps(statuses))
"""


class Route(NamedTuple):
    """A route of the server, its path filled in."""

    is_socket: bool
    path: str
    methods: list[str]


@pytest.fixture(scope="module")
def routes() -> list[Route]:
    """What `app.py` serves, our routes and Streamlit's, as a program that imports it lists them."""
    listed = subprocess.run([sys.executable, "-c", ROUTES], cwd=ROOT, capture_output=True, text=True, check=True)
    made = []
    for kind, path, methods in json.loads(listed.stdout.splitlines()[-1]):
        filled = "/".join("x" if part.startswith("{") else part for part in path.split("/"))
        made.append(Route("WebSocket" in kind, filled or "/", methods))
    assert sum(route.is_socket for route in made) >= 2 and len(made) > 10
    return [route for route in made if route.path != "/_stcore/health"]


def ask(server: Server, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(300).decode(errors="replace")
    finally:
        connection.close()


def shake(server: Server, path: str, origin: str | None, **headers: str) -> int:
    """Status of a handshake: 101 where the socket opens."""
    address = f"ws://127.0.0.1:{server.port}{path}"
    try:
        with connect(address, origin=Origin(origin) if origin else None, additional_headers=headers):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


def test_every_socket_takes_our_origin_alone(shipped: Server, routes: list[Route]) -> None:
    foreign = [f"http://localhost:{shipped.port}", "http://localhost:3000", "http://127.0.0.1:3000", "null", None,
               f"https://127.0.0.1:{shipped.port}", "http://evil.example"]  # fmt: skip
    for route in routes:
        if route.is_socket:
            assert shake(shipped, route.path, shipped.url) == 101
            assert [shake(shipped, route.path, origin) for origin in foreign] == [403] * len(foreign)


def test_every_route_refuses_foreign_pages(shipped: Server, routes: list[Route]) -> None:
    foreign: list[dict[str, str]] = [
        {"Origin": "http://127.0.0.1:3000"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
    ]  # fmt: skip
    for route in routes:
        for method in {*route.methods, "POST", "DELETE"} if not route.is_socket else {"GET"}:
            for headers in foreign:
                status, text = ask(shipped, method, route.path, headers)
                assert status == 403 and (method == "HEAD" or "Refused" in text), (method, route, headers)
            status, text = ask(shipped, method, route.path, {"Origin": shipped.url})
            assert "Refused" not in text, (method, route)
            status, text = ask(shipped, method, route.path, {"Origin": shipped.url, "Host": "evil.example"})
            assert status == 400, (method, route)


def test_a_link_elsewhere_still_opens_pages_and_never_an_export(shipped: Server) -> None:
    tab = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    for path in ("/", "/history", "/models?x=1"):
        assert ask(shipped, "GET", path, tab)[0] == 200
    assert ask(shipped, "GET", "/logitbench/export", tab)[0] == 403


@tells_users
@is_root
def test_another_user_of_the_machine_gets_nothing(shipped: Server, routes: list[Route]) -> None:
    asked: list[tuple[str, str, dict[str, str]]] = []
    for route in routes:
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
                   "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="} if route.is_socket else {}  # fmt: skip
        for method in route.methods:
            asked.append((method, route.path, {"Origin": shipped.url, **upgrade}))
    command = [sys.executable, "-c", CLIENT, str(STRANGER), str(shipped.port)]
    with socket.create_connection(("127.0.0.1", shipped.port)) as ours:
        # uvicorn would take this for the peer's address, and our own connection has it.
        asked.append(("GET", "/", {"X-Forwarded-For": f"127.0.0.1:{ours.getsockname()[1]}"}))
        asked.append(("GET", "/_stcore/health", {}))
        done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True)
    answers: list[Any] = json.loads(done.stdout)
    assert {status for status, _ in answers[:-1]} == {403}
    assert answers[-1] == [200, "ok"]


@pytest.fixture(scope="module")
def with_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that asks everybody for the token; others could read what lies in its home from before."""
    home = tmp_path_factory.mktemp("token")
    home.chmod(0o755)
    for name in ("inbox/refused/old.trial", "models/old.gguf", "snapshots/old.csv", "history.duckdb.before-2"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(b"")
        (home / name).chmod(0o644)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOGITBENCH_ACCESS", "token")
        with running(home) as server:
            yield server


def test_the_token_opens_the_workbench_in_a_browser(with_token: Server, browser: Browser) -> None:
    token = AccessToken(with_token.home).text()
    context = browser.new_context()
    context.set_default_timeout(PATIENT_MS)
    page = context.new_page()
    refused = page.goto(with_token.url)
    assert refused is not None and refused.status == 403
    assert shake(with_token, "/_stcore/stream", with_token.url) == 403
    page.goto(f"{with_token.url}/history?token={token}&view=runs")
    page.get_by_role("heading", name="History", exact=True).wait_for()
    assert token not in page.url and "view=runs" in page.url
    assert page.evaluate("document.cookie").find("logitbench_access") == -1
    context.close()


def test_the_token_is_in_no_log_and_no_argument(with_token: Server) -> None:
    token = AccessToken(with_token.home).text()
    assert str(with_token.home / "access-token") in with_token.log.read_text()
    assert token not in with_token.log.read_text()
    assert token not in Path(f"/proc/{with_token.process.pid}/cmdline").read_text()


def test_nothing_in_its_home_is_for_others(with_token: Server) -> None:
    paths = [with_token.home, *with_token.home.rglob("*")]
    assert {"history.duckdb", "access-token", "old.gguf"} <= {path.name for path in paths}
    assert [path for path in paths if path.stat().st_mode & 0o077] == []
