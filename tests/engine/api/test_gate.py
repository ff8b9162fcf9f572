"""Gate: its header rules, tested with generated hosts, origins, methods, schemes, paths and fetch metadata."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from engine.api.gate import POLICY_VIOLATION, SECURITY_HEADERS
from tests.engine.api.asgi import Asked, gate, scope

drawn = settings(deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
HOME = Path("/nowhere")
PORTS = st.one_of(st.just(""), st.integers(1, 65535).map(":{}".format))
OWN_HOSTS = st.tuples(st.sampled_from(["127.0.0.1", "localhost", "[::1]", "LocalHost"]), PORTS).map("".join)
FOREIGN_HOSTS = st.one_of(
    st.sampled_from(
        [
            "", "evil.example", "evil.example:8501", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "127.0.0.2",
            "localhost.evil.example:8501", "x@127.0.0.1:8501", "[::1", "::1", "[::1]evil:8501", "0.0.0.0", "[::]",
            "localhost:", "localhost:x", "localhost:8501/x", "2130706433", "127.1", "127.0.0.1 evil.example", "é",
        ]
    ),
    st.text(st.characters(min_codepoint=33, max_codepoint=255), max_size=30).filter(
        lambda text: text.partition(":")[0].lower() not in ("127.0.0.1", "localhost", "[")
    ),
)  # fmt: skip
PATHS = st.sampled_from(
    ["/", "/history", "/_stcore/stream", "/_stcore/health/x", "/_stcore/upload_file/a/b", "/media/a.csv",
     "/static/a.js", "/component/x/y", "/logitbench/live", "/logitbench/export", "//evil.example/x", "/_stcore/Health"]
)  # fmt: skip
METHODS = st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get"])
ELSEWHERE = st.sampled_from(["cross-site", "same-site", "", "none, cross-site", "same-origin2"])
SECURE = {"http": "http", "ws": "http", "https": "https", "wss": "https"}


def foreign_origins(own: str) -> st.SearchStrategy[str]:
    """Return a strategy for foreign origins that resemble ours."""
    scheme, _, host = own.partition("://")
    name, port = host.rsplit(":", 1) if host.rpartition(":")[2].isdigit() else (host, "80")
    return st.sampled_from(
        [
            "null", "", "*", host, f"{own}/", f"{own}.evil.example", f"{own}@evil.example", f"{own}, {own}",
            f"{scheme}://{name}:{int(port) - 1}", f"{scheme}://{name}:0{port}", f"{scheme}://evil.example:{port}",
            f"{'http' if scheme == 'https' else 'https'}://{host}", f"{scheme}://user@{host}", f"{scheme}:/{host}",
            f"{scheme}://127.0.0.1.evil.example:{port}", f"ftp://{host}", f"{scheme}://[bad",
        ]
    )  # fmt: skip


@drawn
@given(data=st.data())
def test_a_web_socket_passes_with_our_exact_origin_alone(data: st.DataObject) -> None:
    scheme, host = data.draw(st.sampled_from(["ws", "wss"])), data.draw(OWN_HOSTS)
    own = f"{SECURE[scheme]}://{host.lower()}"
    origin = data.draw(st.one_of(st.none(), st.just(own), foreign_origins(own)))
    headers = (("host", host), *([] if origin is None else [("origin", origin)]))
    asked = Asked(gate(HOME), scope("websocket", data.draw(PATHS), headers, scheme=scheme))
    assert asked.is_passed is (origin == own)
    if not asked.is_passed:
        assert asked.messages == [{"type": "websocket.close", "code": POLICY_VIOLATION}]


@drawn
@given(data=st.data())
def test_a_request_passes_with_our_origin_and_reads_without_one(data: st.DataObject) -> None:
    scheme, host, method = data.draw(st.sampled_from(["http", "https"])), data.draw(OWN_HOSTS), data.draw(METHODS)
    own = f"{scheme}://{host.lower()}"
    origin = data.draw(st.one_of(st.none(), st.just(own), foreign_origins(own)))
    headers = (("host", host), *([] if origin is None else [("origin", origin)]))
    asked = Asked(gate(HOME), scope("http", data.draw(PATHS), headers, method=method, scheme=scheme))
    assert asked.is_passed is (origin == own or (origin is None and method in ("GET", "HEAD")))
    assert asked.status == (200 if asked.is_passed else 403)


@drawn
@given(kind=st.sampled_from(["http", "websocket"]), path=PATHS, host=FOREIGN_HOSTS, copies=st.integers(0, 2))
def test_nothing_passes_under_a_foreign_host(kind: str, path: str, host: str, copies: int) -> None:
    """Without a host header, with a foreign one, and with a foreign one beside ours, in either order."""
    for hosts in ((), (host,) * copies, ("localhost:8501", host), (host, "localhost:8501")):
        origin = ("origin", f"http://{hosts[0] if hosts else 'localhost:8501'}")
        asked = Asked(gate(HOME), scope(kind, path, (*(("host", each) for each in hosts), origin)))
        assert not asked.is_passed
        assert kind == "websocket" or asked.status == 400


@drawn
@given(data=st.data())
def test_what_another_origin_starts_may_only_open_a_page(data: st.DataObject) -> None:
    host, path, method = data.draw(OWN_HOSTS), data.draw(PATHS), data.draw(METHODS)
    mode = data.draw(st.sampled_from(["navigate", "cors", "no-cors", "websocket", "same-origin", None]))
    to = data.draw(st.sampled_from(["document", "iframe", "embed", "object", "script", "image", "empty", None]))
    site = data.draw(st.one_of(ELSEWHERE, st.sampled_from(["same-origin", "none", None])))
    fetch = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": to}
    headers = (("host", host), *((name, value) for name, value in fetch.items() if value is not None))
    asked = Asked(gate(HOME), scope("http", path, headers, method=method))
    is_own = site in ("same-origin", "none", None)
    is_page = mode == "navigate" and to == "document" and path.count("/") == 1
    assert asked.is_passed is (method in ("GET", "HEAD") and (is_own or is_page))


@drawn
@given(site=ELSEWHERE, method=st.sampled_from(["POST", "PUT"]))
def test_our_origin_does_not_excuse_a_foreign_start(site: str, method: str) -> None:
    assume(site)
    headers = (("host", "localhost:1"), ("origin", "http://localhost:1"), ("sec-fetch-site", site))
    assert not Asked(gate(HOME), scope("http", "/", headers, method=method)).is_passed
    assert not Asked(gate(HOME), scope("websocket", "/_stcore/stream", headers)).is_passed


@drawn
@given(host=st.one_of(OWN_HOSTS, FOREIGN_HOSTS), method=METHODS)
def test_health_is_open_to_read(host: str, method: str) -> None:
    for access in ("", "token", "open"):
        asked = Asked(gate(HOME, access), scope("http", "/_stcore/health", (("host", host),), method=method))
        assert asked.is_passed is (method in ("GET", "HEAD"))
    assert not Asked(gate(HOME), scope("websocket", "/_stcore/health", (("host", "localhost"),))).is_passed


@pytest.mark.parametrize("host", ["localhost:8501", "evil.example"])
@pytest.mark.parametrize("path", ["/", "/_stcore/health"])
def test_every_answer_carries_the_headers_once(host: str, path: str) -> None:
    headers = Asked(gate(HOME), scope("http", path, (("host", host),))).headers
    assert {name.decode() for name, _ in SECURITY_HEADERS} <= headers.keys()
    is_beneath = host == "localhost:8501" or path == "/_stcore/health"
    assert headers["x-frame-options"] == ("DENY" if is_beneath else "SAMEORIGIN")


def test_an_unknown_kind_of_scope_does_not_pass() -> None:
    asked = scope() | {"type": "webtransport"}
    with pytest.raises(ValueError, match="no rule allows"):
        Asked(gate(HOME), asked)


def test_the_lifespan_passes() -> None:
    assert Asked(gate(HOME), {"type": "lifespan"}).is_passed
