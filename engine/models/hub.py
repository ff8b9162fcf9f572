"""Hugging Face hub client: repository contents and file streams; the only module that imports huggingface_hub.

The download of huggingface_hub discards partial data when it is stopped, and does not verify the hash of files sent by
plain HTTP; so only its names, headers, login, mirror (HF_ENDPOINT) and session are used, and engine.models.download
stores the files.
"""

import re
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import httpx2
from huggingface_hub import constants, get_token, hf_hub_url
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    OIDCError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import ModelInfo, RepoSibling
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status, validate_repo_id

from engine.errors import ConfigError, DownloadError, NetworkError
from engine.models.incoming import RemoteFile

MOST_FILES = 10_000
MOST_BYTES = 20_000_000
ANSWERS_WITHIN_S = 30.0
"""Limits on a response about a repository: files, bytes and seconds; 10,000 files are 3 MB."""
BEGINS_WITHIN_S = 15.0
MOST_REFUSAL_BYTES, REFUSES_WITHIN_S = 100_000, 3.0
LARGEST_FILE = constants.MAX_HTTP_DOWNLOAD_SIZE
"""Bytes of the largest file that the hub sends by plain HTTP."""

# Otherwise the library fetches a list of coding agents from the hub once a day, and adds those it detects and the
# version of torch to every request (huggingface_hub.utils.build_hf_headers).
constants.HF_HUB_DISABLE_TELEMETRY = True

_OF_THE_TRANSFER = ("content-encoding", "content-length", "transfer-encoding")
_BUSY = (408, 429, 500, 502, 503, 504)
_LOG_IN = "Log in with `hf auth login`, or set HF_TOKEN"
_HASH = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_COMMIT = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
_MOST_SIZE = 1 << 50
# A mirror has the repositories of this hub, so addresses copied from the hub are valid for it too.
_HUB = frozenset({"huggingface.co", "www.huggingface.co", "hf.co", "www.hf.co"})
_ADDRESS = re.compile(
    r"(?:https?://(?P<host>[^/\s]+)/|hf://)?(?P<name>[^/\s@?]+/[^/\s@?]+)"
    r"(?:@(?P<revision>[^\s@]+)|/(?:tree|blob|resolve)/(?P<of_page>[^/\s?]+)(?:/(?P<file>[^\s?]*))?|/)?(?:\?\S*)?"
)


@dataclass(frozen=True)
class Repository:
    """Repository at one commit.

    is_gated: access must be requested from its owner. endpoint: empty, or a hub other than that of HF_ENDPOINT.
    """

    name: str
    commit: str
    license: str
    is_gated: bool
    files: tuple[RemoteFile, ...]
    endpoint: str = ""


class Address(NamedTuple):
    """Parsed repository address; revision and file are empty where it does not name them."""

    name: str
    revision: str
    file: str


def parse_address(text: str, endpoint: str = "") -> Address:
    """Parse owner/name, owner/name@revision, or the URL of a page of the hub; `endpoint` as in `Repository`.

    Raises ConfigError for anything else, and for a page of a host other than huggingface.co and the configured hub.
    """
    parts = _ADDRESS.fullmatch(text.strip())
    if parts is None:
        raise ConfigError(f"{text!r} is not the name of a repository: write owner/name, as on its page on the hub")
    hub = urlsplit(endpoint or constants.ENDPOINT).netloc
    if parts["host"] and parts["host"].casefold() not in _HUB | {hub.casefold()}:
        raise ConfigError(
            f"{text!r} is an address on {parts['host']}, but the hub in use is {hub}. Use "
            f"{parts['name']} for the repository of that name on {hub}; for one on {parts['host']}, set HF_ENDPOINT to "
            "that hub and restart."
        )
    return Address(parts["name"], unquote(parts["revision"] or parts["of_page"] or ""), unquote(parts["file"] or ""))


def read_repository(address: str, endpoint: str = "") -> Repository:
    """Fetch the contents of a repository from the hub; `address` as for `parse_address`.

    There is no retry, so that a missing network is reported within seconds. Raises ConfigError for an invalid name,
    NetworkError, and DownloadError where the hub refuses access or does not know the repository.
    """
    name, revision, _file_named = parse_address(address, endpoint)
    _check_login()
    with _failures_said(name):
        try:
            return _repository(name, _model_info(name, revision, endpoint), endpoint)
        except HFValidationError as error:
            raise ConfigError(f"{name!r} is not the name of a repository: {_first_line(error)}") from error
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError, httpx2.InvalidURL) as error:
            raise DownloadError(
                f"The server at {endpoint or constants.ENDPOINT} is not a Hugging Face hub: {_first_line(error)}. "
                "Check HF_ENDPOINT, and whether this network requires a login."
            ) from error


def _model_info(name: str, revision: str, endpoint: str) -> ModelInfo:
    """Fetch as HfApi.model_info with files_metadata, but with limits on the response's size and time."""
    validate_repo_id(name)
    address = f"{endpoint or constants.ENDPOINT}/api/models/{name}"
    if revision:
        address += f"/revision/{quote(revision, safe='')}"
    timeout_s, ends = constants.HF_HUB_ETAG_TIMEOUT, time.monotonic() + ANSWERS_WITHIN_S
    with _response_to(f"{address}?blobs=true", build_hf_headers(), timeout_s) as response:
        answer = _with_body(response, MOST_BYTES, ends)
    hf_raise_for_status(answer)
    return ModelInfo(**answer.json())  # type: ignore[no-untyped-call]


class _Connection:
    """Connection of one request, which can be shut down before its response has begun."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._is_over = False

    def note(self, event: str, facts: Mapping[str, Any]) -> None:
        """Receive the events of httpcore2's extension "trace"."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._socket = facts["return_value"].get_extra_info("socket")
        if self._is_over:
            raise httpx2.ReadTimeout("the request was given up")

    def shut_down(self) -> None:
        """Make the thread that waits for the response fail."""
        self._is_over = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


@contextmanager
def _response_to(address: str, headers: Mapping[str, str], timeout_s: float) -> Iterator[httpx2.Response]:
    """Open the response to a GET request, whose headers must arrive within BEGINS_WITHIN_S.

    Timeouts of httpx2 apply to single reads, and headers may arrive byte by byte, or after any number of interim
    responses; so a thread waits for them, and its connection is shut down where they never end. Raises DownloadError
    for an address that is not one, as of a redirect.
    """
    connection = _Connection()
    request = get_session().stream(
        "GET",
        address,
        headers={**headers, "Connection": "close"},  # so that a connection belongs to one request
        timeout=timeout_s,
        follow_redirects=True,
        extensions={"trace": connection.note},
    )
    begun: Future[httpx2.Response] = Future()

    def ask() -> None:
        try:
            response = request.__enter__()
        except BaseException as error:
            if begun.set_running_or_notify_cancel():
                begun.set_exception(error)
            return
        if begun.set_running_or_notify_cancel():
            begun.set_result(response)
        else:
            request.__exit__(None, None, None)

    threading.Thread(target=ask, name="logitbench-hub", daemon=True).start()
    wait([begun], BEGINS_WITHIN_S)
    if begun.cancel():
        connection.shut_down()
        raise httpx2.ReadTimeout(f"no answer within {BEGINS_WITHIN_S:g} s")
    try:
        response = begun.result()
    except (ValueError, httpx2.InvalidURL) as error:
        raise DownloadError(
            f"The hub's address, or one that it redirects to, is not valid: {_first_line(error)}. Check "
            "HF_ENDPOINT, and whether this network requires a login."
        ) from error
    try:
        yield response
    finally:
        request.__exit__(*sys.exc_info())


def _with_body(response: httpx2.Response, most_bytes: int, ends: float) -> httpx2.Response:
    """Return the response with its body read. Raises ValueError beyond `most_bytes`, ReadTimeout after `ends`."""
    content = bytearray()
    for piece in response.iter_bytes():
        content += piece
        if len(content) > most_bytes:
            raise ValueError(f"the answer has more than {most_bytes:,} bytes")
        if time.monotonic() > ends:
            raise httpx2.ReadTimeout("the answer was not complete in time")
    headers = [(key, value) for key, value in response.headers.multi_items() if key not in _OF_THE_TRANSFER]
    return httpx2.Response(response.status_code, headers=headers, content=bytes(content), request=response.request)


@contextmanager
def opened(repository: Repository, file: RemoteFile, offset: int) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Open a file on the hub for reading from byte `offset`; yields the start of the response and its byte stream.

    The start is 0 where the server does not support ranges. Raises NetworkError when the connection fails or breaks,
    also while the bytes are read; DownloadError where the hub refuses access, or the response has another size.
    """
    _check_login()
    endpoint = repository.endpoint or None
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    address = hf_hub_url(repository.name, file.path, revision=repository.commit, endpoint=endpoint)
    timeout_s = constants.HF_HUB_DOWNLOAD_TIMEOUT
    asked = f"{repository.name}, {file.path}"
    with _failures_said(asked), _response_to(address, headers, timeout_s) as response:
        if not response.is_success:
            hf_raise_for_status(_with_short_body(response))
        begins = offset if response.status_code == httpx2.codes.PARTIAL_CONTENT else 0
        said = response.headers.get("Content-Range", f"bytes {begins}-")
        length = response.headers.get("Content-Length", "")
        if not said.startswith(f"bytes {begins}-") or (length.isdigit() and begins + int(length) != file.size):
            raise DownloadError(
                f"{response.url.host} sends {length or 'other'} bytes from {said.removeprefix('bytes ')} instead of "
                f"{file.path} with {file.size:,} from {begins:,}. Check HF_ENDPOINT, and whether this network requires "
                "a login."
            )
        yield begins, response.iter_bytes()


def _with_short_body(response: httpx2.Response) -> httpx2.Response:
    """Return an error response with its body if that is short and arrives soon; huggingface_hub reads without limit."""
    try:
        return _with_body(response, MOST_REFUSAL_BYTES, time.monotonic() + REFUSES_WITHIN_S)
    except (ValueError, httpx2.HTTPError):
        return httpx2.Response(response.status_code, headers=response.headers, content=b"", request=response.request)


def _repository(name: str, info: ModelInfo, endpoint: str) -> Repository:
    siblings = info.siblings or []
    if len(siblings) > MOST_FILES:
        raise DownloadError(f"{name} has {len(siblings):,} files; the limit is {MOST_FILES:,}")
    if not isinstance(info.sha, str) or not _COMMIT.fullmatch(info.sha):
        raise ValueError("the answer has no commit")
    licence = info.card_data.get("license", "") if info.card_data else ""
    return Repository(
        name=name,
        commit=info.sha,
        license=licence if isinstance(licence, str) else "",
        is_gated=bool(info.gated),
        files=tuple(_file(sibling) for sibling in siblings),
        endpoint=endpoint,
    )


def _file(sibling: RepoSibling) -> RemoteFile:
    size = sibling.lfs.size if sibling.lfs else sibling.size
    sha256 = sibling.lfs.sha256 if sibling.lfs else ""
    str(sibling.rfilename).encode()  # half of a surrogate pair is a UnicodeError
    file = RemoteFile(str(sibling.rfilename), size or 0, sha256, sibling.blob_id or "")
    is_size = isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= _MOST_SIZE
    if not is_size or not _HASH.fullmatch(file.digest):
        raise ValueError(f"the answer has no size or hash for {file.path!r}")
    return file


@contextmanager
def _failures_said(asked: str) -> Iterator[None]:
    """Convert exceptions of huggingface_hub and of the connection into the engine's, with advice on what to do next."""
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise NetworkError("HF_HUB_OFFLINE is set, so the hub is not used. Unset it to download models.") from error
    except HfHubHTTPError as error:
        raise _refusal(asked, error) from error
    except httpx2.HTTPError as error:
        raise NetworkError(
            f"No connection to the hub for {asked}: {_first_line(error)}. Models on this machine work without it."
        ) from error


def _check_login() -> None:
    """Raise DownloadError where a login of huggingface_hub exists but cannot be read; having none is not an error."""
    try:
        get_token()
    except (OSError, ValueError, OIDCError) as error:
        raise DownloadError(f"The hub login cannot be read: {_first_line(error)}. {_LOG_IN}.") from error


def _refusal(asked: str, error: HfHubHTTPError) -> DownloadError:
    status = error.response.status_code
    if isinstance(error, GatedRepoError):
        page = f"{constants.ENDPOINT}/{error.repo_id}"
        if get_token():
            return DownloadError(f"{asked} is gated, and your login has no access yet. Request access at {page}.")
        return DownloadError(f"{asked} is gated. Request access at {page}, then: {_LOG_IN}.")
    if isinstance(error, RevisionNotFoundError):
        return DownloadError(f"{asked} has no such revision. Leave it out to get the newest.")
    if isinstance(error, RemoteEntryNotFoundError):
        return DownloadError(f"The hub has no {asked}. It may have been removed; list the repository again.")
    if isinstance(error, RepositoryNotFoundError) or (status == httpx2.codes.NOT_FOUND):
        return DownloadError(
            f"The hub has no {asked}, or it is private. Check the spelling. If it is private: {_LOG_IN}."
        )
    if isinstance(error, DisabledRepoError):
        return DownloadError(f"The hub has disabled {asked} for everyone. Choose another.")
    if status in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN):
        return DownloadError(
            f"The hub refuses this login access to {asked} ({status}: {_server_says(error)}). {_LOG_IN}."
        )
    if status in _BUSY:
        return NetworkError(f"The hub is busy ({status}: {_server_says(error)}). Try again in a few minutes.")
    return DownloadError(f"The hub answers {status} for {asked}: {_server_says(error)}.")


def _server_says(error: HfHubHTTPError) -> str:
    return _first_line(error.server_message or error.response.reason_phrase or "no reason given")


def _first_line(said: object) -> str:
    """Return the first line of a message, at most 200 characters; the type's name for an empty one."""
    lines = str(said).strip().splitlines()
    return lines[0][:200].rstrip(".") if lines else type(said).__name__
