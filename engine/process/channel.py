"""Message channel: typed messages as length-prefixed msgpack frames over one end of a socket pair."""

import socket
import struct
import time
from typing import Any

import msgspec

_LENGTH = 4
_UNPACK = struct.Struct("<I").unpack_from
_LARGEST = 1 << 30


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """Base class of all messages."""


class Channel:
    """One end of the socket between a program and its parent. Only one thread may receive; sends must not overlap.

    receives: the type, or union of types, that the other end sends.
    """

    def __init__(self, end: socket.socket, receives: Any) -> None:
        self.socket = end
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(receives)
        self._room = memoryview(bytearray(1 << 18))
        self._begun = bytearray()
        self._received: list[Any] = []

    def send(self, *messages: Any) -> None:
        """Send messages, together as far as they fit the socket, so that the other end wakes once.

        Raises OSError when the other end is closed, TimeoutError after the socket's timeout.
        """
        self.finish(self.encoded(*messages))

    def encoded(self, *messages: Any) -> memoryview:
        """Return the frames of messages; raises TypeError, ValueError or OverflowError where one cannot be encoded."""
        frames = bytearray()
        for message in messages:
            at = len(frames)
            self._encoder.encode_into(message, frames, at + _LENGTH)
            frames[at : at + _LENGTH] = (len(frames) - at - _LENGTH).to_bytes(_LENGTH, "little")
        return memoryview(frames)

    def offer(self, frame: memoryview) -> memoryview:
        """Send as much of a frame as a socket without a timeout takes at once, and return the rest.

        Raises OSError when the other end is closed, RuntimeError for a socket with a timeout, within which it would
        wait until the other end reads.
        """
        if self.socket.gettimeout() is not None:
            raise RuntimeError("messages are offered to a socket with a timeout: a defect of this program")
        try:
            return frame[self.socket.send(frame, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            return frame

    def finish(self, frame: memoryview) -> None:
        """Send a frame, or the rest of one; raises OSError as `send` does."""
        self.socket.sendall(frame)

    def receive(self) -> list[Any]:
        """Wait for data and return every complete message; raises EOFError when the other end is closed."""
        try:
            size = self.socket.recv_into(self._room)
        except ConnectionError:
            size = 0
        if not size:
            raise EOFError("the other end of the channel is closed")
        frames: bytearray | memoryview = self._room
        if self._begun:
            self._begun += self._room[:size]
            frames, size = self._begun, len(self._begun)
        messages = []
        at = 0
        while size - at >= _LENGTH:
            start = at + _LENGTH
            (length,) = _UNPACK(frames, at)
            if length > _LARGEST:
                raise EOFError("a frame of the channel is damaged")
            if size < start + length:
                break
            messages.append(self._decoder.decode(frames[start : start + length]))
            at = start + length
        if frames is self._begun:
            del self._begun[:at]
        elif at < size:
            self._begun += frames[at:size]
        return messages

    def receive_one(self, deadline: float | None = None) -> Any:
        """Wait for one message, at most until `deadline` (monotonic seconds) if one is given.

        Raises EOFError or OSError when the other end is closed, TimeoutError at the deadline.
        """
        while not self._received:
            self.set_deadline(deadline)
            self._received = self.receive()
        return self._received.pop(0)

    def set_deadline(self, deadline: float | None) -> None:
        """Make sends and receives raise TimeoutError after `deadline` (monotonic seconds); None for no deadline."""
        left = None if deadline is None else max(deadline - time.monotonic(), 1e-6)
        self.socket.settimeout(left)
