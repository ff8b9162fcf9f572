"""Access to the workbench: the peer's user where this machine can tell it, else a token and the cookie made from it."""

import hmac
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from engine.api import peers
from engine.api.access_token import AccessToken
from engine.api.request_rules import Refusal, Scope, header

TOKEN, COOKIE = "token", "logitbench_access"
COOKIE_S = 30 * 24 * 3600
ROOT = 0
# uvicorn believes these where a connection comes from this machine, and puts what they say in the place of the peer.
_FORWARDED = (b"forwarded", b"x-forwarded-for")

OTHER_USER = Refusal(
    403,
    "Refused: this workbench belongs to another user of this machine. Who started it can let others in with the "
    "setting LOGITBENCH_ACCESS=token.",
)


class Exchange(NamedTuple):
    """The answer to a right token: where the browser goes on, and the cookie it goes on with."""

    location: str
    cookie: str


class Access:
    """Who may ask, by the setting `access`.

    "": our user and root; a peer whose user cannot be told needs the token. "token": everybody needs it. "open":
    nobody does. `home` is the folder of the token's file.
    """

    def __init__(self, setting: str, home: Path) -> None:
        self._setting, self._token = setting, AccessToken(home)

    def refusal_of(self, scope: Scope) -> Refusal | None:
        """What speaks against the peer of a request, None where nothing does."""
        if self._setting == "open":
            return None
        if self._setting != "token" and (uid := _uid_of_peer(scope)) is not None:
            return None if uid in (os.geteuid(), ROOT) else OTHER_USER
        try:
            own = self._token.cookie()
        except OSError as error:
            return Refusal(403, f"Refused: the file {self._token.path} with the access token cannot be used ({error}).")
        if any(hmac.compare_digest(given.encode(), own.encode()) for given in _cookies(scope)):
            return None
        return Refusal(
            403,
            "Refused: who asks could not be told, so the access token is needed. Open the address that the workbench "
            f"printed at its start, or add ?{TOKEN}=… to this one; the token is in the file {self._token.path.name} of "
            "the workbench's home folder.",
        )

    def exchange(self, scope: Scope) -> Exchange | None:
        """What a request for a page with the right token in its address is answered with; None for all others."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, encoding="utf-8")
        given = [value for name, value in query if name == TOKEN]
        if self._setting == "open" or scope["method"] != "GET" or not given:
            return None
        try:
            if not self._token.is_token(given[0]):
                return None
            cookie = self._token.cookie()
        except OSError:
            return None
        rest = urlencode([(name, value) for name, value in query if name != TOKEN])
        # A path that begins with two slashes would lead to another host.
        path = "/" + quote(scope["path"].lstrip("/\\"))
        is_secure = "; Secure" if scope.get("scheme") == "https" else ""
        return Exchange(
            f"{path}?{rest}" if rest else path,
            f"{_cookie_name(scope)}={cookie}; Path=/; Max-Age={COOKIE_S}; HttpOnly; SameSite=Strict{is_secure}",
        )

    def announcement(self, address: str, *, is_seen: bool) -> str:
        """What is printed at the start for those who will need the token; "" where the plain address does.

        address: of the start page. is_seen: a person reads it; a log gets the token's file instead of the token.
        """
        if self._setting == "open" or (self._setting != "token" and peers.can_be_told()):
            return ""
        try:
            token = self._token.text()
        except OSError as error:
            return f"The workbench cannot be opened: the file {self._token.path} with its token is unusable ({error})."
        if is_seen:
            return f"The workbench opens at {address}?{TOKEN}={token}"
        return f"The workbench opens at {address}?{TOKEN}=…; the token is in the file {self._token.path}"


def _uid_of_peer(scope: Scope) -> int | None:
    client, server = scope.get("client"), scope.get("server")
    if client is None or server is None or any(header(scope, name) for name in _FORWARDED):
        return None
    return peers.uid_of(tuple(client), tuple(server))


def _cookie_name(scope: Scope) -> str:
    """The port is in the name: browsers send a cookie to all ports of a host, where other workbenches may be."""
    port = header(scope, b"host")[0].rpartition(b":")[2].decode("latin-1")
    return f"{COOKIE}_{port}" if port.isdigit() else COOKIE


def _cookies(scope: Scope) -> Iterator[str]:
    """What a request brings under our cookie's name."""
    name = _cookie_name(scope)
    for value in header(scope, b"cookie"):
        for pair in value.decode("latin-1").split(";"):
            key, _, given = pair.strip().partition("=")
            if key == name:
                yield given
