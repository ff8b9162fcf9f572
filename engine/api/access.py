"""Access control: by the peer's user id where this machine can determine it, else by a token and its cookie."""

import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from engine.api import peers
from engine.api.access_token import AccessToken
from engine.api.request_rules import Refusal, Scope, header

TOKEN, COOKIE = "token", "logitbench_access"
COOKIE_S = 30 * 24 * 3600
# uvicorn trusts these headers on connections from this machine, and replaces the peer's address with theirs.
_FORWARDED = (b"forwarded", b"x-forwarded-for")

OTHER_USER = Refusal(
    403,
    "Refused: this workbench belongs to another user of this machine. The user who started it can allow others with "
    "the setting LOGITBENCH_ACCESS=token.",
)


class Exchange(NamedTuple):
    """Response to a valid token: the location to redirect to, and the cookie to set."""

    location: str
    cookie: str


class Access:
    """Access policy, chosen by the setting `access`.

    "": our own user and root are allowed; a peer whose user cannot be determined needs the token. "token": every peer
    needs the token. "open": no peer needs it. `home` is the folder of the token's file.
    """

    def __init__(self, setting: str, home: Path) -> None:
        self._setting, self._token = setting, AccessToken(home)

    def refusal_of(self, scope: Scope) -> Refusal | None:
        """Return why the peer of a request is refused, None where it is allowed."""
        if self._setting == "open":
            return None
        if self._setting != "token" and (uid := _uid_of_peer(scope)) is not None:
            return None if peers.is_trusted(uid) else OTHER_USER
        try:
            own = self._token.cookie()
        except OSError as error:
            return Refusal(403, f"Refused: the access token file {self._token.path} cannot be used ({error}).")
        if any(hmac.compare_digest(given.encode(), own.encode()) for given in _cookies(scope)):
            return None
        return Refusal(
            403,
            "Refused: your user could not be determined, so the access token is required. Open the address that the "
            f"workbench printed at start-up, or add ?{TOKEN}=… to this one; the token is in the file "
            f"{self._token.path.name} in the workbench's home folder.",
        )

    def exchange(self, scope: Scope) -> Exchange | None:
        """Return the response to a GET request with a valid token in its query string; None for all other requests."""
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
        # A location that begins with two slashes would redirect to another host.
        path = "/" + quote(scope["path"].lstrip("/\\"))
        is_secure = "; Secure" if scope.get("scheme") == "https" else ""
        return Exchange(
            f"{path}?{rest}" if rest else path,
            f"{_cookie_name(scope)}={cookie}; Path=/; Max-Age={COOKIE_S}; HttpOnly; SameSite=Strict{is_secure}",
        )

    def announcement(self, address: str, *, is_seen: bool) -> str:
        """Return the line to print at start-up where the token is needed; "" where the plain address is enough.

        address: of the start page. is_seen: the output is read by a person; a log gets the path of the token's file
        instead of the token.
        """
        if self._setting == "open" or (self._setting != "token" and peers.can_identify()):
            return ""
        try:
            token = self._token.text()
        except OSError as error:
            return f"The workbench cannot be opened: its token file {self._token.path} is unusable ({error})."
        if is_seen:
            return f"The workbench opens at {address}?{TOKEN}={token}"
        return f"The workbench opens at {address}?{TOKEN}=…; the token is in the file {self._token.path}"


def _uid_of_peer(scope: Scope) -> int | None:
    client, server = scope.get("client"), scope.get("server")
    if client is None or server is None or any(header(scope, name) for name in _FORWARDED):
        return None
    return peers.uid_of(tuple(client), tuple(server))


def _cookie_name(scope: Scope) -> str:
    """Return the cookie's name, which contains the port.

    Browsers send a cookie to every port of a host, and other workbenches may run on those.
    """
    port = header(scope, b"host")[0].rpartition(b":")[2].decode("latin-1")
    return f"{COOKIE}_{port}" if port.isdigit() else COOKIE


def _cookies(scope: Scope) -> Iterator[str]:
    """Yield the values that a request sends under our cookie's name."""
    name = _cookie_name(scope)
    for value in header(scope, b"cookie"):
        for pair in value.decode("latin-1").split(";"):
            key, _, given = pair.strip().partition("=")
            if key == name:
                yield given
