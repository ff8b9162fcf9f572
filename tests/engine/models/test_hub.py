"""Hub client: what it returns about a repository, and its errors when the hub returns nothing."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

import engine.models.hub
from engine.errors import ConfigError, DownloadError, NetworkError
from engine.models.catalogue import choose, look_up
from engine.models.download import Download
from engine.models.hub import MOST_BYTES, Repository, opened, parse_address, read_repository
from engine.models.incoming import RemoteFile
from tests.engine.models import hub_server
from tests.engine.models.conftest import DATA, FILE, NAME, NO_WAIT, Get, partials
from tests.engine.models.hub_server import Hub
from tests.http_handler import QuietHandler
from tests.waiting import until

NOBODY = "http://127.0.0.1:9"


def test_a_repository_is_described_with_commit_licence_sizes_and_hashes(hub: Hub) -> None:
    repository = read_repository(NAME, hub.endpoint)
    assert (repository.name, repository.license, repository.is_gated) == (NAME, "mit", False)
    assert repository.commit == hub.commit(NAME)
    assert {file.path: file.size for file in repository.files} == {FILE: len(DATA), "README.md": 8}


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        ((404, "RepoNotFound"), "Check the spelling"),
        ((401, "RepoNotFound"), "If it is private: Log in"),
        ((401, ""), "refuses this login access to"),
        ((403, "Other"), "refuses"),
        ((403, "GatedRepo"), "is gated"),
        ((404, "RevisionNotFound"), "no such revision"),
        ((418, "Other"), "answers 418"),
    ],
)
def test_a_refusal_says_what_to_do(hub: Hub, refusal: tuple[int, str], said: str) -> None:
    hub.refusal = refusal
    with pytest.raises(DownloadError, match=said) as failure:
        read_repository(NAME, hub.endpoint)
    assert not isinstance(failure.value, NetworkError)


def test_a_busy_hub_counts_as_a_broken_connection(hub: Hub, get: Get) -> None:
    hub.refusal = (503, "Other")
    with pytest.raises(NetworkError, match="busy"):
        read_repository(NAME, hub.endpoint)


def test_a_login_that_does_not_hold_any_more_is_said(hub: Hub, login: Path) -> None:
    login.write_text("hf_old")
    hub.needs_token = "hf_new"
    with pytest.raises(DownloadError, match="refuses .* Invalid credentials"):
        read_repository(NAME, hub.endpoint)


@pytest.mark.usefixtures("login")
def test_no_network_is_said() -> None:
    with pytest.raises(NetworkError, match="Models on this machine work without it"):
        read_repository(NAME, NOBODY)


def test_offline_mode_is_said(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(NetworkError, match="HF_HUB_OFFLINE is set"):
        read_repository(NAME, hub.endpoint)
    assert hub.asked == []


@pytest.mark.parametrize(
    "page", [b"<html>Please log in to this network</html>", b"[" * 100_000, b"[]", b"null", b"{}", b'{"id": 1}']
)
def test_what_is_no_hub_is_said(hub: Hub, folder: Path, page: bytes) -> None:
    repository = read_repository(NAME, hub.endpoint)
    hub.page = page
    with pytest.raises(DownloadError, match="is not a Hugging Face hub"):
        read_repository(NAME, hub.endpoint)
    with pytest.raises(DownloadError, match="instead of"):
        Download(repository, choose(repository).files, folder).start().result(60)
    assert partials(folder) == []


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (NAME, (NAME, "", "")),
        (f" {NAME}@v1 ", (NAME, "v1", "")),
        (f"https://huggingface.co/{NAME}", (NAME, "", "")),
        (f"https://hf.co/{NAME}/tree/main", (NAME, "main", "")),
        (f"https://huggingface.co/{NAME}/resolve/main/a%20b/{FILE}?download=true", (NAME, "main", f"a b/{FILE}")),
        (f"hf://{NAME}", (NAME, "", "")),
    ],
)
def test_an_address_is_read_as_it_stands_in_a_browser(text: str, address: tuple[str, str, str]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("host", ["hf-mirror.com", "huggingface.co.evil.example", "huggingface.co:444", "x@hf.co"])
@pytest.mark.parametrize("page", ["", "/tree/main", f"/resolve/main/{FILE}?download=true"])
def test_an_address_on_another_host_is_refused_by_its_name(host: str, page: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"on {host}, but the hub in use is huggingface.co")):
        parse_address(f"https://{host}/{NAME}{page}")


def test_a_mirror_takes_addresses_of_its_own(hub: Hub) -> None:
    assert parse_address(f"{hub.endpoint}/{NAME}/tree/v1", hub.endpoint) == (NAME, "v1", "")
    assert read_repository(f"{hub.endpoint}/{NAME}", hub.endpoint).name == NAME
    assert read_repository(f"https://huggingface.co/{NAME}", hub.endpoint).name == NAME
    with pytest.raises(ConfigError, match=r"on localhost:1, but the hub"):
        read_repository(f"http://localhost:1/{NAME}", hub.endpoint)


def test_what_a_person_names_is_looked_up(hub: Hub) -> None:
    hub.repositories["TheBloke/phi-2-GGUF"] = {"phi-2.Q4_K_M.gguf": DATA, "phi-2.Q8_0.gguf": DATA}
    repository, choice = look_up("phi-2", endpoint=hub.endpoint)
    assert (repository.name, choice.name) == ("TheBloke/phi-2-GGUF", "phi-2.Q4_K_M.gguf")
    assert look_up("phi-2", "q8_0", endpoint=hub.endpoint)[1].name == "phi-2.Q8_0.gguf"
    page = "https://huggingface.co/TheBloke/phi-2-GGUF/blob/main/phi-2.Q8_0.gguf"
    assert look_up(page, endpoint=hub.endpoint)[1].name == "phi-2.Q8_0.gguf"
    with pytest.raises(ConfigError, match="Use owner/name for any repository"):
        look_up("phi-9", endpoint=hub.endpoint)


def test_a_login_that_cannot_be_read_is_said(hub: Hub, login: Path) -> None:
    login.mkdir()
    with pytest.raises(DownloadError, match="cannot be read.*hf auth login"):
        read_repository(NAME, hub.endpoint)


@pytest.mark.parametrize("claimed", ["../../../tmp/x", "A" * 64, "ab"])
def test_a_hash_that_is_none_is_refused(hub: Hub, claimed: str) -> None:
    hub.claimed_hash = claimed
    with pytest.raises(DownloadError, match="no size or hash for 'little"):
        read_repository(NAME, hub.endpoint)


@pytest.mark.parametrize("name", ["", "alone", "a/b/c", "../etc/passwd", "a b/c", "-x-/--y", "a/" + "b" * 200])
def test_a_name_that_no_repository_has_is_refused_unasked(hub: Hub, name: str) -> None:
    with pytest.raises(ConfigError, match="not the name of a repository"):
        read_repository(name, hub.endpoint)


def test_an_answer_of_any_size_or_length_is_not_read(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.page = b" " * (MOST_BYTES + 1)
    with pytest.raises(DownloadError, match=f"more than {MOST_BYTES:,} bytes"):
        read_repository(NAME, hub.endpoint)
    monkeypatch.setattr(engine.models.hub, "ANSWERS_WITHIN_S", -1.0)
    with pytest.raises(NetworkError, match="was not complete in time"):
        read_repository(NAME, hub.endpoint)


class _Refusing(QuietHandler):
    """Handler that answers 404 and then sends data forever."""

    piece, pause_s = b"x" * 65_536, 0.0

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()
        with suppress(OSError):
            while True:
                time.sleep(self.pause_s)
                self.wfile.write(self.piece)


class _Dripping(QuietHandler):
    """Handler that sends a beginning, and then one piece after another, without end."""

    start, piece, pause_s = b"HTTP/1.1 200 OK\r\n", b"X-More: 1\r\n", 0.05

    def do_GET(self) -> None:
        with suppress(OSError):
            self.wfile.write(self.start)
            while True:
                time.sleep(self.pause_s)
                self.wfile.write(self.piece)


@pytest.mark.parametrize(("piece", "pause_s"), [(b"x" * 65_536, 0.0), (b"x", 0.05)], ids=["flood", "drip"])
def test_a_refusal_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch, piece: bytes, pause_s: float) -> None:
    monkeypatch.setattr(engine.models.hub, "REFUSES_WITHIN_S", 0.3)
    handler = type("Handler", (_Refusing,), {"piece": piece, "pause_s": pause_s})
    with served(handler) as endpoint, pytest.raises(DownloadError, match="The hub has no"):
        _open_file(endpoint)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sends",
    [
        {},
        {"start": b"", "piece": b"HTTP/1.1 100 Continue\r\n\r\n", "pause_s": 0.0},
        {"start": b"", "piece": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"},
        {"start": b"HTTP/1.1 200 OK\r\nX-Long: ", "piece": b"x"},
        {"start": b"", "piece": b"", "pause_s": 1.0},
    ],
    ids=["headers", "continue", "early hints", "one header", "silence"],
)
def test_headers_are_not_awaited_for_ever(monkeypatch: pytest.MonkeyPatch, sends: dict[str, object]) -> None:
    monkeypatch.setattr(engine.models.hub, "BEGINS_WITHIN_S", 0.5)
    with served(type("Handler", (_Dripping,), sends)) as endpoint:
        for ask in (lambda: read_repository(NAME, endpoint), lambda: _open_file(endpoint)):
            with pytest.raises(NetworkError, match="no answer within"):
                ask()
        until(lambda: "logitbench-hub" not in [thread.name for thread in threading.enumerate()], "a thread goes on")


def _open_file(endpoint: str) -> None:
    file = RemoteFile("x.gguf", 1000, "a" * 64, "")
    with opened(Repository(NAME, "c0ffee", "", False, (file,), endpoint), file, 0):
        pass


@contextmanager
def served(handler: type[QuietHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "address",
    [
        f"http://{'a' * 70}.com/",
        "http://a..b/",
        "http://[::1/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:x/",
        "http://a b/",
        "http://\xff\x01/",
        "http:///",
        "//",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "ftp://127.0.0.1/",
        f"http://127.0.0.1/{'a' * 100_000}",
        "?",
    ],
)
def test_a_redirect_to_what_is_no_address_is_said(hub: Hub, folder: Path, address: str) -> None:
    repository = read_repository(NAME, hub.endpoint)
    hub.redirect = address
    with pytest.raises(DownloadError):
        read_repository(NAME, hub.endpoint)
    with pytest.raises(DownloadError) as caught:
        Download(repository, choose(repository).files, folder, waits_s=NO_WAIT).start().result(60)
    assert "defect" not in str(caught.value) and len(str(caught.value)) < 1_000
    assert partials(folder) == []


@pytest.mark.parametrize("change", [{"size": 10**400}, {"size": True}, {"size": -1}, {"rfilename": "\ud800.gguf"}])
def test_a_file_that_cannot_be_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch, change: dict[str, object]) -> None:
    monkeypatch.setattr(
        hub_server._Answers, "_sibling", lambda *_: {"rfilename": "a.gguf", "blobId": "0" * 40, **change}
    )
    with pytest.raises(DownloadError, match="is not a Hugging Face hub"):
        read_repository(NAME, hub.endpoint)


@pytest.mark.parametrize("commit", [["x"], "\ud800", "s/../../..", "", 7])
def test_a_commit_that_cannot_be_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch, commit: object) -> None:
    monkeypatch.setattr(Hub, "commit", lambda *_: commit)
    with pytest.raises(DownloadError, match="is not a Hugging Face hub"):
        read_repository(NAME, hub.endpoint)
