"""Link to a server: requests and streams by HTTP, with limits on the size and the duration of what it answers."""

import asyncio
import math
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2
import msgspec

from engine.backends.address import Address
from engine.backends.sent import ANY, decoded
from engine.backends.wire import MOST_IDLE, Body, Wire
from engine.errors import ConfigError, EngineError, PromptTooLong, QueueFull, ServerFailed

CONNECTS_WITHIN_S = 10.0
ANSWERS_WITHIN_S = 30.0
"""Of requests that generate nothing."""
BEGINS_WITHIN_S = 600.0
"""First event of a stream: a long prompt on a slow machine."""
NEXT_WITHIN_S = 120.0
ENDS_WITHIN_S = 0.02
"""From the last event of a stream to the end of the response: only then can its connection serve another request."""
MOST_ANSWER_BYTES = 32 << 20
MOST_EVENT_BYTES = 4 << 20
"""One event; a token with 1,024 candidates takes about 100 kB."""
MOST_CHARACTERS = 300
"""Characters of what a server says of an error."""
MOST_WAITS, LONGEST_WAIT_S = 5, 60.0
"""How often, and how long at most, a request is repeated after the wait that a busy server asks for."""

_TIMEOUT = httpx2.Timeout(None, connect=CONNECTS_WITHIN_S).as_dict()
_TOO_LONG = ("exceed_context_size_error", "context_length_exceeded")
_USED_UP = "insufficient_quota"
"""OpenAI's code for a quota that is used up, sent with status 429: waiting does not help."""


class Link:
    """Connections to one server. A redirect is not followed, so that the key goes nowhere else.

    All methods raise ServerFailed where the server cannot be reached, refuses, or answers with something else than its
    API says.
    """

    def __init__(self, address: Address, key: str) -> None:
        self.address = address
        self._headers = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "logitbench"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._transport = _transport_to(address)
        self._urls: dict[str, httpx2.URL] = {}

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON that the server answers to GET, or to POST with a body."""
        async with _within(ANSWERS_WITHIN_S, "answer"), self._response(path, body) as response:
            return decoded(await _read(response), ANY)

    async def find(self, path: str) -> Any:
        """Return the JSON at a path, None where the server has none there."""
        try:
            return await self.ask(path)
        except ConfigError:
            return None
        except ServerFailed as error:
            if error.status is None:
                raise
            return None

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        body: Mapping[str, Any],
        begins_within_s: float | None = None,
        takes: Callable[[list[bytes]], bool] | None = None,
    ) -> AsyncIterator[AsyncIterator[list[bytes]]]:
        """Post a request and yield its events as JSON, those that came together as one list; where the server is busy,
        wait as it asks, some times.

        begins_within_s: seconds until the answer begins, and then until its first event; None: BEGINS_WITHIN_S. takes:
        is called with events as soon as they have come, and returns whether it has taken them; others are yielded.
        """
        within_s = BEGINS_WITHIN_S if begins_within_s is None else begins_within_s
        for attempt in range(MOST_WAITS + 1):
            async with self._begun(path, body, within_s) as response:
                wait_s = _wait_s(response)
                if wait_s is None or attempt == MOST_WAITS:
                    async with _within(ANSWERS_WITHIN_S, "finish its error"):
                        await _check(response, self.address)
                    async with _silence(within_s) as silence:
                        yield _events(response, silence, takes)
                    return
            await asyncio.sleep(wait_s)

    @asynccontextmanager
    async def _begun(self, path: str, body: Mapping[str, Any], within_s: float) -> AsyncIterator[httpx2.Response]:
        """As `_response`, with a limit on the time until the answer begins only."""
        async with _within(within_s, "begin to answer"):
            response = await self._sent(path, body)
        try:
            yield response
        finally:
            await response.aclose()

    @asynccontextmanager
    async def _response(self, path: str, body: Mapping[str, Any] | None) -> AsyncIterator[httpx2.Response]:
        response = await self._sent(path, body)
        try:
            await _check(response, self.address)
            yield response
        finally:
            await response.aclose()

    async def _sent(self, path: str, body: Mapping[str, Any] | None) -> httpx2.Response:
        """Send a request over the transport itself: a client above it would take as long again as all else here."""
        method, content, headers = "GET", None, self._headers
        if body is not None:
            method, content = "POST", msgspec.json.encode(body)
            headers = {**headers, "Content-Type": "application/json"}
        try:
            request = httpx2.Request(
                method, self._url(path), headers=headers, content=content, extensions={"timeout": _TIMEOUT}
            )
            try:
                return await self._transport.handle_async_request(request)
            except (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError):
                # the server closed a connection that was kept open: use another
                return await self._transport.handle_async_request(request)
        except (httpx2.HTTPError, httpx2.InvalidURL, ssl.SSLError) as error:
            raise _unreachable(self.address, error) from None

    def _url(self, path: str) -> httpx2.URL:
        """Return the address of one of the few paths of an API, each of which is parsed once."""
        if path not in self._urls:
            self._urls[path] = httpx2.URL(self.address.root + path)
        return self._urls[path]


def _transport_to(address: Address) -> httpx2.AsyncBaseTransport:
    """Return what carries requests to an address: connections of our own, or httpx2's through a proxy."""
    proxy = _proxy_of(address)
    if proxy is None:
        return Wire(CONNECTS_WITHIN_S)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=MOST_IDLE)
    return httpx2.AsyncHTTPTransport(proxy=proxy, limits=limits)


def _proxy_of(address: Address) -> str | None:
    """Return the proxy that the environment names for an address, which is not asked for this machine itself."""
    url, proxies = urlsplit(address.root), getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if proxy is None or address.is_loopback or proxy_bypass(url.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _unreachable(address: Address, error: Exception) -> ServerFailed:
    reason = _bounded(str(error) or type(error).__name__)
    if "certificate" in reason.lower():
        return ServerFailed(f"{address.root}: its certificate cannot be verified ({reason}), so nothing was sent")
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return ServerFailed(
            f"{address.root} cannot be reached ({reason}): is the server running, and the address right?", is_away=True
        )
    return ServerFailed(f"{address.root}: the connection broke ({reason})")


@asynccontextmanager
async def _within(seconds: float, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise ServerFailed(f"the server did not {what} within {seconds:g} s") from None


async def _read(response: httpx2.Response, most: int = MOST_ANSWER_BYTES) -> bytes:
    content = bytearray()
    async for part in _parts(response):
        content += part
        if len(content) > most:
            raise ServerFailed(f"the server's answer is larger than {most:,} bytes")
    return bytes(content)


async def _parts(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Yield the content as it comes. Raises ServerFailed where the connection breaks."""
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    try:
        async for part in response.stream:
            yield part
    except httpx2.HTTPError as error:
        raise ServerFailed(f"the connection broke ({_bounded(str(error))})") from None


async def _check(response: httpx2.Response, address: Address) -> None:
    """Raise the error that a response stands for, and ServerFailed where it is no JSON and no stream of events."""
    status = response.status_code
    if 300 <= status < 400:
        to = _bounded(response.headers.get("location", ""), 100)
        raise ServerFailed(
            f"{address.root} redirects to {to or 'another address'}, which is not followed, as the key would go there: "
            "use the address itself",
            status=status,
        )
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise ServerFailed(f"{address.root} answers compressed, though it was asked not to")
    if status >= 400:
        raise _refusal(address, status, await _read(response, MOST_EVENT_BYTES), response.headers.get("retry-after"))
    if kind not in ("application/json", "text/event-stream"):
        raise ServerFailed(
            f"{address.root} answers with {_bounded(kind, 60) or 'something unnamed'}, not with JSON: is this the "
            "address of the API?",
            status=status,
        )


def _refusal(address: Address, status: int, content: bytes, retry_after: str | None) -> EngineError:
    """Return the error for a status of 400 or more, with what the server says of it."""
    try:
        answer = decoded(content, ANY)
    except ServerFailed:
        answer = None
    text, kinds = _message_and_kinds(answer)
    if status in (401, 403):
        return ServerFailed(f"{address.root} refuses the key, or asks for one ({status}){text}", status=status)
    if any(kind in _TOO_LONG for kind in kinds):
        return PromptTooLong(f"{address.root} says{text}: shorten the prompt")
    if status == 429 and _USED_UP in kinds:
        return ServerFailed(f"{address.root} has no quota left for this key{text}", status=status)
    if status == 429:
        seconds = _seconds(retry_after)
        when = "" if seconds is None else f", and asks to wait {seconds:g} s"
        return QueueFull(f"{address.root} has too many requests{when}{text}")
    if status == 400:
        return ConfigError(f"{address.root} refuses the request{text}")
    return ServerFailed(f"{address.root} answers with status {status}{text}", status=status)


def refused(error: object) -> EngineError:
    """Return the error for what a server says of its failure within a stream."""
    text, kinds = _message_and_kinds({"error": error})
    if any(kind in _TOO_LONG for kind in kinds):
        return PromptTooLong(f"the server says{text}: shorten the prompt")
    return ServerFailed(f"the server ended the answer with an error{text}", status=200)


def _message_and_kinds(answer: object) -> tuple[str, tuple[str, ...]]:
    """Return what a server says of an error, as the end of a sentence, and its type and code."""
    match answer:
        case {"error": {"message": str(message), **others}}:
            return f": {_bounded(message)}", tuple(str(others.get(name))[:60] for name in ("type", "code"))
        case {"error": str(message)} | {"detail": str(message)} | {"message": str(message)}:
            return f": {_bounded(message)}", ()
    return "", ()


def _wait_s(response: httpx2.Response) -> float | None:
    """Return the seconds that a busy server asks to wait; None where it does not, or for too long."""
    if response.status_code not in (429, 503):
        return None
    seconds = _seconds(response.headers.get("retry-after"))
    return seconds if seconds is not None and seconds <= LONGEST_WAIT_S else None


def _seconds(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After header, None for a date and for anything else."""
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


class _Silence:
    """Limit on the time that a server is silent. One timer serves all waits of a stream: it looks when each began."""

    def __init__(self, limit: asyncio.Timeout, within_s: float) -> None:
        self._loop, self._limit = asyncio.get_running_loop(), limit
        self.within_s = within_s
        self._ends_at = math.inf
        self._timer = self._loop.call_later(within_s, self._look)

    def begin(self, within_s: float) -> None:
        """Let the server be silent for so long from now on."""
        if within_s < self.within_s:
            self.close()
            self._timer = self._loop.call_later(within_s, self._look)
        self.within_s, self._ends_at = within_s, self._loop.time() + within_s

    def pause(self) -> None:
        """Stop the clock while the reader works."""
        self._ends_at = math.inf

    def close(self) -> None:
        """End the timer."""
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        if now >= self._ends_at:
            self._limit.reschedule(now)
        else:
            self._timer = self._loop.call_at(min(self._ends_at, now + self.within_s), self._look)


@asynccontextmanager
async def _silence(within_s: float) -> AsyncIterator[_Silence]:
    """End what waits for a server in this block, with ServerFailed, once it is silent for too long."""
    limit = asyncio.timeout(None)
    try:
        async with limit:
            silence = _Silence(limit, within_s)
            try:
                yield silence
            finally:
                silence.close()
    except TimeoutError:
        if not limit.expired():
            raise
        raise ServerFailed(f"the server did not send the next token within {silence.within_s:g} s") from None


async def _events(
    response: httpx2.Response, silence: _Silence, takes: Callable[[list[bytes]], bool] | None
) -> AsyncIterator[list[bytes]]:
    """Yield the events of a stream that came together, or the one JSON object that a server answers with instead; not
    those that `takes` takes.
    """
    silence.begin(silence.within_s)
    is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
    if not is_stream:
        content = await _read(response)
        silence.pause()
        yield [content]
        return
    left, parts = bytearray(), _parts(response)

    def taken(part: bytes) -> bool:
        nonlocal left
        if takes is None or b"\n" not in part:
            return False
        events, rest, is_last = _cut(left + part if left else part)
        if is_last or (events and not takes(events)):
            return False
        if left or rest:
            left = bytearray(rest)
        if events:
            silence.begin(NEXT_WITHIN_S)
        return True

    if isinstance(response.stream, Body):
        response.stream.takes = taken
    async for part in parts:
        left += part
        if b"\n" not in part and len(left) <= MOST_EVENT_BYTES:
            continue
        events, rest, is_last = _cut(left)
        left = bytearray(rest)
        if events or is_last:
            silence.pause()
            yield events
            silence.begin(NEXT_WITHIN_S)
        if is_last:
            takes = None
            break
    with suppress(TimeoutError, ServerFailed):  # nothing is missing
        async with asyncio.timeout(ENDS_WITHIN_S):
            async for _ in parts:
                continue


def _cut(came: bytes | bytearray) -> tuple[list[bytes], bytes | bytearray, bool]:
    """Return the events in what came of a stream, the beginning of the next one, and whether the last has come.

    Comments and other fields are passed over. Raises ServerFailed for an event that is too long.
    """
    *lines, left = came.split(b"\n")
    if len(came) > MOST_EVENT_BYTES and max(map(len, (left, *lines))) > MOST_EVENT_BYTES:
        raise ServerFailed(f"the server sent an event of more than {MOST_EVENT_BYTES:,} bytes")
    events = [data for line in lines if line.startswith(b"data:") and (data := bytes(line[5:]).strip())]
    if is_last := b"[DONE]" in events:
        events = events[: events.index(b"[DONE]")]
    return events, left, is_last


def _bounded(text: str | None, most: int = MOST_CHARACTERS) -> str:
    """Return a text of a server as an error shows it: one line of printable characters."""
    line = "".join(one if one.isprintable() else " " for one in (text or "")[:most])
    return " ".join(line.split())
