"""Wire: connections to one server for httpx2, which hand over at once what has come together."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial

import h11
import httpx2

from engine.backends.chunks import Chunks
from engine.errors import ServerFailed

MOST_IDLE = 64
"""Connections that are kept open for further requests."""
MOST_HEAD_BYTES = 100 << 10
MOST_UNREAD_BYTES = 256 << 10
"""Bytes that have come and are not read yet; beyond them the server has to wait."""


class Wire(httpx2.AsyncBaseTransport):
    """Connections to one server by HTTP/1.1, without proxies. For one event loop.

    connects_within_s: limit on the time to connect; other times are the caller's to limit. Raises what httpx2 raises.
    """

    def __init__(self, connects_within_s: float) -> None:
        self._connects_within_s = connects_within_s
        self._idle: list[_Connection] = []
        self._ssl: ssl.SSLContext | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and return the response once its head is here.

        Where the server has closed a connection that was kept open, another is used.
        """
        await request.aread()
        while (kept := self._kept()) is not None:
            with suppress(httpx2.RemoteProtocolError, httpx2.ReadError):
                return await self._answered(kept, request)
        return await self._answered(await self._connected(request.url), request)

    async def _answered(self, connection: "_Connection", request: httpx2.Request) -> httpx2.Response:
        try:
            connection.send(request)
            head = await connection.head()
        except BaseException:
            connection.close()
            raise
        is_chunked = head.status_code == 200 and (b"transfer-encoding", b"chunked") in head.headers
        body = Body(self, connection, is_chunked=is_chunked)
        return httpx2.Response(head.status_code, headers=list(head.headers.raw_items()), stream=body)

    def keep(self, connection: "_Connection") -> None:
        """Take back a connection whose response was read, for another request if it can serve one."""
        if len(self._idle) < MOST_IDLE and connection.begins_anew():
            self._idle.append(connection)
        else:
            connection.close()

    def _kept(self) -> "_Connection | None":
        while self._idle:
            if (connection := self._idle.pop()).is_silent:
                return connection
            connection.close()
        return None

    async def _connected(self, url: httpx2.URL) -> "_Connection":
        is_secure = url.scheme == "https"
        if is_secure and self._ssl is None:
            self._ssl = httpx2.create_ssl_context()
        try:
            async with asyncio.timeout(self._connects_within_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    _Connection,
                    url.host,
                    url.port or (443 if is_secure else 80),
                    ssl=self._ssl if is_secure else None,
                )
        except TimeoutError:
            raise httpx2.ConnectTimeout(f"no connection within {self._connects_within_s:g} s") from None
        except OSError as error:
            raise httpx2.ConnectError(str(error)) from error
        return connection

    async def aclose(self) -> None:
        """Close the connections that no response is read from."""
        while self._idle:
            self._idle.pop().close()


class _Connection(asyncio.Protocol):
    """One connection: a request, then what comes of its response. is_read: whether all of that was read."""

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT, MOST_HEAD_BYTES)
        self._unread = bytearray()
        self._reader: asyncio.Future[None] | None = None
        self._offer: Callable[[bytearray], bool] | None = None
        self._num_known = 0
        self._error: Exception | None = None
        self.is_closed = self.is_read = False

    @property
    def is_silent(self) -> bool:
        """Whether it is open, and nothing has come that was not read."""
        return not self.is_closed and not self._unread

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if self._offer is not None and self._offer(self._unread):
            self._num_known = len(self._unread)
            return
        self._wake()
        if len(self._unread) > MOST_UNREAD_BYTES:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._error, self.is_closed = exc, True
        self._wake()

    def send(self, request: httpx2.Request) -> None:
        """Write a whole request, whose content was read."""
        try:
            parts = [
                self._http.send(
                    h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
                ),
                self._http.send(h11.Data(request.content)),
                self._http.send(h11.EndOfMessage()),
            ]
        except h11.LocalProtocolError as error:
            raise httpx2.LocalProtocolError(str(error)) from None
        self._transport.write(b"".join(part for part in parts if part))

    async def head(self) -> h11.Response:
        """Return the head of the response; those that only announce it are passed over."""
        while not isinstance(event := self._next(), h11.Response):
            if event is h11.NEED_DATA:
                await self._wait()
                end = self._unread.find(b"\r\n\r\n") + 4  # the content is read apart
                self._give(end if end > 3 else len(self._unread))
            elif not isinstance(event, h11.InformationalResponse):
                raise httpx2.RemoteProtocolError("the server closed the connection without an answer")
        return event

    async def content(self, *, is_chunked: bool, takes: Callable[[bytes], bool] | None) -> AsyncIterator[bytes]:
        """Yield the content of the response, all that has come at once, to its end. takes: as Body.takes."""
        if is_chunked and not self._http.trailing_data[0]:
            chunks = Chunks()
            while not chunks.is_over:
                try:
                    part = chunks.take(self._unread)
                except ServerFailed as error:
                    raise httpx2.RemoteProtocolError(str(error)) from None
                if part:
                    yield part
                elif not chunks.is_over:
                    num_cut = len(self._unread)  # of a line
                    await self._wait(num_cut, partial(chunks.offer, takes=takes) if takes else None)
                    if len(self._unread) <= self._num_known:
                        raise httpx2.RemoteProtocolError("the server closed the connection within the answer")
            self._http.receive_data(b"0\r\n\r\n")  # its end is all that the parser is told of the content
        while True:
            parts = []
            while isinstance(event := self._next(), h11.Data):
                parts.append(event.data)
            if parts:
                yield b"".join(parts)
            if event is not h11.NEED_DATA:
                self.is_read = True
                return
            await self._wait()
            self._give(len(self._unread))

    def begins_anew(self) -> bool:
        """Make ready for another request; return False where the connection cannot serve one."""
        is_done = self._http.our_state is self._http.their_state is h11.DONE
        if not is_done or not self.is_silent or self._http.trailing_data[0]:
            return False
        self._http.start_next_cycle()
        self.is_read = False
        return True

    def close(self) -> None:
        """Close at once, whatever is still on its way."""
        self._transport.abort()

    def _next(self) -> object:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise httpx2.RemoteProtocolError(str(error)) from None

    async def _wait(self, num_known: int = 0, offer: Callable[[bytearray], bool] | None = None) -> None:
        """Wait until more is unread than the bytes that are known, or the connection is closed.

        offer: is called with what is unread whenever more has come, and returns whether the wait goes on, as it has
        taken that.
        """
        self._transport.resume_reading()
        self._offer, self._num_known = offer, num_known
        try:
            while len(self._unread) <= self._num_known and not self.is_closed:
                self._reader = asyncio.get_running_loop().create_future()
                await self._reader
        finally:
            self._offer = None
        if self._error is not None and len(self._unread) <= self._num_known:
            raise httpx2.ReadError(str(self._error)) from None

    def _wake(self) -> None:
        self._offer = None
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _give(self, num_bytes: int) -> None:
        """Give what is unread to the parser; nothing is the end of the connection."""
        self._http.receive_data(bytes(self._unread[:num_bytes]))
        del self._unread[:num_bytes]


class Body(httpx2.AsyncByteStream):
    """The content of a response, whose connection is kept once all of it was read.

    takes: is called with content in chunks as soon as it has come, while a reader waits for it, and returns whether it
    has taken it. Content that was taken never reaches the reader: waking it would cost more.
    """

    def __init__(self, wire: Wire, connection: _Connection, *, is_chunked: bool) -> None:
        self._wire, self._connection, self._is_chunked = wire, connection, is_chunked
        self.takes: Callable[[bytes], bool] | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._connection.content(is_chunked=self._is_chunked, takes=self.takes)

    async def aclose(self) -> None:
        """Keep the connection, or close it where content is left."""
        if self._connection.is_read:
            self._wire.keep(self._connection)
        else:
            self._connection.close()
