"""Local server that speaks the Hugging Face hub's protocol, with the faults that tests request.

Files of at least LARGE bytes are stored as the hub stores LFS files: identified by SHA-256, and sent by another origin
to which the hub redirects. Smaller files are identified by git's hash of a blob and sent by the hub itself.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from tests.http_handler import QuietHandler

LARGE = 1024
BLOCK = 16 << 10


class Asked(NamedTuple):
    """One request for the bytes of a file; range and authorization are empty if the header was not sent."""

    origin: str
    path: str
    range: str
    authorization: str


class Hub:
    """Repositories by name, each with its files by path.

    needs_token: the token that a request must carry, empty for none. refusal: status and error code of every response.
    breaks: the numbers of bytes after which the next responses break off. takes_ranges: if False, every file is sent
    from the beginning. claimed_sizes, claimed_hash: what the listing says instead of the truth. is_corrupt: bytes are
    changed. extra: unannounced bytes after the end. shift: added to the position where a response claims to begin.
    page: the body of every response, unless empty. redirect: where every response redirects to, unless empty. pace:
    awaited after each block of the storage. sent: set once the first block has been sent. asked: every request for
    the bytes of a file. paths: the path of every request to the hub itself.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.needs_token = ""
        self.refusal: tuple[int, str] | None = None
        self.breaks: list[int] = []
        self.takes_ranges = True
        self.claimed_sizes: dict[str, int] = {}
        self.claimed_hash = ""
        self.is_corrupt = False
        self.page = b""
        self.redirect = ""
        self.extra = b""
        self.shift = 0
        self.pace = threading.Event()
        self.pace.set()
        self.sent = threading.Event()
        self.asked: list[Asked] = []
        self.paths: list[str] = []
        self.endpoint = self.storage = ""

    @property
    def ranges(self) -> list[str]:
        """Ranges requested from the storage, in order."""
        return [asked.range for asked in self.asked if asked.origin == "storage"]

    def commit(self, name: str) -> str:
        """Return the commit of a repository, which changes whenever its files change."""
        return hashlib.sha1(repr(sorted(self.repositories[name].items())).encode()).hexdigest()


@contextmanager
def serving() -> Iterator[Hub]:
    """Serve a hub and its storage on two ports of this machine."""
    hub = Hub()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub, origin)) for origin in ("hub", "storage")]
    hub.endpoint, hub.storage = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield hub
    finally:
        close_session()
        hub.pace.set()
        for server in servers:
            server.shutdown()
            server.server_close()


def without_login(monkeypatch: pytest.MonkeyPatch, token: Path) -> None:
    """Hide any login of this machine: huggingface_hub looks for its token in this file alone."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(token))


def by_default(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
    """Make it the default hub, as HF_ENDPOINT does before huggingface_hub is imported."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def _handler(hub: Hub, origin: str) -> type[QuietHandler]:
    return type("Handler", (_Answers,), {"hub": hub, "origin": origin})


class _Answers(QuietHandler):
    hub: Hub
    origin: str

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path).removeprefix("/")
        if self.origin == "storage":
            return self._send_from_storage(path)
        self.hub.paths.append(path)
        if self.hub.redirect:
            return self._send(302, b"", {"Location": self.hub.redirect})
        if self.hub.page:
            return self._send(200, self.hub.page, {"Content-Type": "text/html"})
        if self.hub.refusal:
            return self._refuse(*self.hub.refusal)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.hub.needs_token and token != self.hub.needs_token:
            return self._refuse(401, "" if token else "RepoNotFound")
        if path.startswith("api/models/"):
            return self._send_listing(path.removeprefix("api/models/").split("/revision/"))
        if "/resolve/" not in path:
            return self._refuse(404, "")
        name, _, rest = path.partition("/resolve/")
        return self._send_file(name, *rest.split("/", 1), is_let_in=bool(token) or name not in self.hub.gated)

    def _send_listing(self, parts: list[str]) -> None:
        name = parts[0]
        if name not in self.hub.repositories:
            return self._refuse(404, "RepoNotFound")
        if parts[1:] not in ([], ["main"], [self.hub.commit(name)]):
            return self._refuse(404, "RevisionNotFound")
        listing = {
            "id": name,
            "sha": self.hub.commit(name),
            "gated": "auto" if name in self.hub.gated else False,
            "cardData": {"license": "mit"},
            "siblings": [self._sibling(path, data) for path, data in self.hub.repositories[name].items()],
        }
        return self._send(200, json.dumps(listing).encode(), {"Content-Type": "application/json"})

    def _sibling(self, path: str, data: bytes) -> dict[str, object]:
        size = self.hub.claimed_sizes.get(path, len(data))
        sibling: dict[str, object] = {"rfilename": path, "size": size, "blobId": git_hash(data)}
        if len(data) >= LARGE:
            sha256 = self.hub.claimed_hash or hashlib.sha256(data).hexdigest()
            sibling["lfs"] = {"sha256": sha256, "size": size, "pointerSize": 134}
        return sibling

    def _send_file(self, name: str, revision: str, path: str, *, is_let_in: bool) -> None:
        self._note(path)
        if not is_let_in:
            return self._refuse(401, "GatedRepo")
        data = self.hub.repositories.get(name, {}).get(path)
        if data is None or revision not in ("main", self.hub.commit(name)):
            return self._refuse(404, "EntryNotFound")
        facts = {"X-Repo-Commit": self.hub.commit(name), "ETag": f'"{git_hash(data)}"'}
        if len(data) < LARGE:
            return self._send(200, data, facts)
        sha256 = hashlib.sha256(data).hexdigest()
        facts |= {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(data))}
        return self._send(302, b"", facts | {"Location": f"{self.hub.storage}/{name}/{path}"})

    def _send_from_storage(self, path: str) -> None:
        self._note(path)
        owner, name, file = path.split("/", 2)
        data = self.hub.repositories[f"{owner}/{name}"][file]
        asked = self.headers.get("Range", "")
        if not asked or not self.hub.takes_ranges:
            return self._send(200, data, {})
        begin = int(asked.removeprefix("bytes=").removesuffix("-"))
        said = f"bytes {begin + self.hub.shift}-{len(data) - 1}/{len(data)}"
        return self._send(206, data[begin:], {"Content-Range": said})

    def _note(self, path: str) -> None:
        if self.command == "GET":
            headers = self.headers
            self.hub.asked.append(Asked(self.origin, path, headers.get("Range", ""), headers.get("Authorization", "")))

    def _refuse(self, status: int, code: str) -> None:
        said = {"X-Error-Code": code} if code else {"X-Error-Message": "Invalid credentials in Authorization header"}
        self._send(status, b"", said)

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        is_stored = self.origin == "storage"
        self.send_response(status)
        if not (is_stored and self.hub.extra):
            self.send_header("Content-Length", str(len(data)))
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        last = self.hub.breaks.pop(0) if is_stored and self.hub.breaks else len(data)
        if is_stored:
            data = bytes(byte ^ 1 for byte in data) if self.hub.is_corrupt else data + self.hub.extra
            last += len(self.hub.extra)
        for start in range(0, min(last, len(data)), BLOCK):
            self.wfile.write(data[start : min(start + BLOCK, last)])
            if is_stored:
                self.hub.sent.set()
                self.hub.pace.wait()


def git_hash(data: bytes) -> str:
    """Return git's hash of a blob with these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
