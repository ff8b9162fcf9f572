"""Request rules: Host, Origin and Sec-Fetch checks that this server's own pages pass and foreign pages do not."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

Scope = Mapping[str, Any]

HEALTH = "/_stcore/health"
SAFE_METHODS = frozenset({"GET", "HEAD"})
_LOOPBACK = re.compile(rb"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.IGNORECASE)
_ORIGIN_SCHEMES = {"http": b"http", "ws": b"http", "https": b"https", "wss": b"https"}
_OWN_SITES = ((), (b"same-origin",), (b"none",))


class Refusal(NamedTuple):
    """Refusal of a request: the HTTP status, and a sentence for the person who sees it."""

    status: int
    text: str


FOREIGN_HOST = Refusal(
    400, "Refused: this workbench answers only at 127.0.0.1, localhost and [::1]. Open it at one of these."
)
FOREIGN_ORIGIN = Refusal(403, "Refused: this request was not sent by a page of this workbench.")
FOREIGN_SITE = Refusal(
    403, "Refused: a page of another site sent this request. Open the workbench itself and continue there."
)


def header(scope: Scope, name: bytes) -> tuple[bytes, ...]:
    """Return the values of a header in the order sent; `name` must be in lower case."""
    return tuple(value for key, value in scope["headers"] if key == name)


def is_health(scope: Scope) -> bool:
    """Return whether a request is for the health check, the one path open to everybody (scripts wait on it)."""
    return scope["type"] == "http" and scope["path"] == HEALTH and scope["method"] in SAFE_METHODS


def refusal_of(scope: Scope) -> Refusal | None:
    """Return why a request is refused by its headers, None where it is allowed.

    Host must be a loopback name. Origin must match that host, port and scheme exactly; only read requests (GET and
    HEAD, no web socket) may omit it. A request that the browser marks as started by another origin (Sec-Fetch-Site)
    must be a person opening a page: a navigation of the whole tab to a path of one segment, as all pages have.
    """
    if not is_loopback(scope):
        return FOREIGN_HOST
    host = header(scope, b"host")
    origin = header(scope, b"origin")
    is_reading = scope["type"] == "http" and scope["method"] in SAFE_METHODS
    own = b"%b://%b" % (_ORIGIN_SCHEMES.get(scope.get("scheme", ""), b""), host[0].lower())
    if origin != (own,) and not (is_reading and not origin):
        return FOREIGN_ORIGIN
    if header(scope, b"sec-fetch-site") not in _OWN_SITES and not (is_reading and _is_opening_a_page(scope)):
        return FOREIGN_SITE
    return None


def is_loopback(scope: Scope) -> bool:
    """Return whether the request names this machine as its host, once."""
    host = header(scope, b"host")
    return len(host) == 1 and _LOOPBACK.fullmatch(host[0]) is not None


def _is_opening_a_page(scope: Scope) -> bool:
    is_tab = header(scope, b"sec-fetch-mode") == (b"navigate",) and header(scope, b"sec-fetch-dest") == (b"document",)
    return is_tab and scope["path"].count("/") == 1
