"""Access: our own user is recognised by the connection, others by the token and the cookie issued for it."""

import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.api import peers
from engine.api.access import Access
from tests.engine.api.asgi import Asked, gate, scope

drawn = settings(deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
HOST = ("host", "127.0.0.1:8501")
tells_users = pytest.mark.skipif(not peers.can_identify(), reason="this system does not tell whose a connection is")


def token_of(home: Path) -> str:
    return (home / "access-token").read_text().strip()


def exchanged(home: Path, path: str = "/", query: str = "", **more: Any) -> Asked:
    gate_ = gate(home, "token")
    Asked(gate_, scope())
    return Asked(gate_, scope("http", path, (HOST,), query=query or f"token={token_of(home)}", **more))


@pytest.fixture
def connection() -> Any:
    """Client and server address of an open connection of this process."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, address = server.accept()
        with accepted:
            yield {"client": address, "server": accepted.getsockname(), "socket": client}


@tells_users
def test_our_own_connection_passes_and_makes_no_token(tmp_path: Path, connection: Any) -> None:
    asked = scope() | {name: connection[name] for name in ("client", "server")}
    assert Asked(gate(tmp_path, ""), asked).is_passed
    assert not list(tmp_path.iterdir())
    assert not Asked(gate(tmp_path, "token"), asked).is_passed


@tells_users
@pytest.mark.parametrize(("uid", "is_passed"), [(os.geteuid(), True), (0, True), (os.geteuid() + 1, False)])
def test_the_user_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, *, is_passed: bool) -> None:
    monkeypatch.setattr(peers, "uid_of", lambda client, server: uid)
    for kind in ("http", "websocket"):
        headers = (HOST, ("origin", "http://127.0.0.1:8501"))
        assert Asked(gate(tmp_path, ""), scope(kind, headers=headers)).is_passed is is_passed
    if not is_passed:
        asked = Asked(gate(tmp_path, ""), scope())
        assert asked.status == 403 and "another user" in asked.text


@tells_users
@pytest.mark.parametrize("name", ["x-forwarded-for", "forwarded"])
@pytest.mark.parametrize("value", ["", "127.0.0.1:{port}", "for=127.0.0.1"])
def test_a_forwarded_address_is_nobodys(tmp_path: Path, connection: Any, name: str, value: str) -> None:
    """The client controls this header, and the server uses it as the address of the peer."""
    peer = {name: connection[name] for name in ("client", "server")}
    headers = (HOST, (name, value.format(port=connection["client"][1])))
    assert not Asked(gate(tmp_path, ""), scope(headers=headers) | peer).is_passed


@pytest.mark.parametrize("access", ["", "token"])
@pytest.mark.parametrize("peer", [{}, {"client": None}, {"server": None}, {"client": ("testclient", 50000)}])
def test_an_unknown_peer_needs_the_token(tmp_path: Path, access: str, peer: dict[str, Any]) -> None:
    asked = Asked(gate(tmp_path, access), scope() | peer)
    assert asked.status == 403 and "access-token" in asked.text
    assert token_of(tmp_path) not in asked.text


def test_the_token_becomes_a_cookie_and_leaves_the_address(tmp_path: Path) -> None:
    asked = exchanged(tmp_path, "/history")
    assert (asked.status, asked.headers["location"]) == (303, "/history")
    cookie, *flags = asked.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(flags) and "Secure" not in flags
    assert token_of(tmp_path) not in cookie
    for kind in ("http", "websocket"):
        headers = (HOST, ("origin", "http://127.0.0.1:8501"), ("cookie", f"a=b; {cookie}; c"))
        assert Asked(gate(tmp_path, "token"), scope(kind, headers=headers)).is_passed


def test_a_cookie_is_for_its_port(tmp_path: Path) -> None:
    cookie = exchanged(tmp_path).headers["set-cookie"].split(";")[0]
    other = (("host", "127.0.0.1:8502"), ("cookie", cookie))
    assert not Asked(gate(tmp_path, "token"), scope(headers=other)).is_passed


@drawn
@given(
    path=st.text(st.characters(codec="utf-8", min_codepoint=32), max_size=20),
    query=st.lists(
        st.tuples(st.text("ab&=# +é", min_size=1, max_size=5), st.text("ab&=# +%é", max_size=5)), max_size=4
    ),
)
def test_the_redirect_keeps_the_page_and_stays_here(
    tmp_path_factory: pytest.TempPathFactory, path: str, query: list[tuple[str, str]]
) -> None:
    home = tmp_path_factory.getbasetemp()
    Asked(gate(home, "token"), scope())
    pairs = [*query, ("token", token_of(home))]
    text = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in pairs)
    location = exchanged(home, "/" + path, text).headers["location"]
    parts = urlsplit(location)
    assert location.startswith("/") and not location.startswith(("//", "/\\"))
    assert (parts.scheme, parts.netloc) == ("", "")
    assert parse_qsl(parts.query, keep_blank_values=True) == query


@pytest.mark.parametrize("query", ["token=", "token=guess", "token=%C3%A9", "token=%FF", "Token={token}", "x={token}"])
def test_a_wrong_token_is_refused(tmp_path: Path, query: str) -> None:
    asked = exchanged(tmp_path, query=query)
    Asked(gate(tmp_path, "token"), scope())
    assert asked.status == 403
    right = query.replace("{token}", token_of(tmp_path))
    assert exchanged(tmp_path, query=right).status == 403


@pytest.mark.parametrize("method", ["HEAD", "POST"])
def test_only_opening_a_page_exchanges_the_token(tmp_path: Path, method: str) -> None:
    assert exchanged(tmp_path, method=method).status == 403


@pytest.mark.parametrize("cookie", ["", "logitbench_access_8501=", "logitbench_access_8501=guess", "{token}"])
def test_a_wrong_cookie_is_refused(tmp_path: Path, cookie: str) -> None:
    Asked(gate(tmp_path, "token"), scope())
    given_ = cookie.replace("{token}", f"logitbench_access_8501={token_of(tmp_path)}")
    assert not Asked(gate(tmp_path, "token"), scope(headers=(HOST, ("cookie", given_)))).is_passed


def test_a_token_of_another_home_is_refused(tmp_path: Path) -> None:
    cookie = exchanged(tmp_path / "a").headers["set-cookie"].split(";")[0]
    Asked(gate(tmp_path / "b", "token"), scope())
    assert token_of(tmp_path / "a") != token_of(tmp_path / "b")
    assert not Asked(gate(tmp_path / "b", "token"), scope(headers=(HOST, ("cookie", cookie)))).is_passed


def test_a_home_that_cannot_be_written_refuses(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    asked = Asked(gate(tmp_path / "file" / "home", "token"), scope(query="token=x"))
    assert asked.status == 403 and "cannot be used" in asked.text


def test_the_start_says_how_to_open_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = Access("token", tmp_path).announcement("http://127.0.0.1:8501/", is_seen=True)
    assert said.endswith(f"http://127.0.0.1:8501/?token={token_of(tmp_path)}")
    logged = Access("token", tmp_path).announcement("http://127.0.0.1:8501/", is_seen=False)
    assert str(tmp_path / "access-token") in logged and token_of(tmp_path) not in logged
    assert Access("open", tmp_path).announcement("x", is_seen=True) == ""
    for can in (True, False):
        monkeypatch.setattr(peers, "can_identify", lambda can=can: can)
        assert bool(Access("", tmp_path).announcement("x", is_seen=True)) is not can
