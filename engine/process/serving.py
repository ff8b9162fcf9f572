"""Request loop of a child program, which answers requests sequentially."""

import contextlib
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from engine.errors import EngineError
from engine.process.channel import Channel, Message
from engine.process.limits import applied, begin_request


class Reply(Message, frozen=True):
    """Answer to one request, or the class and text of an EngineError. A program's first reply, sent once it is ready,
    has neither."""

    answer: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str = ""
    text: str = ""


def serve(end: socket.socket, receives: Any, answer: Callable[[Any], Any]) -> None:
    """Report that this program is ready, then answer every request until the parent hangs up.

    receives: type of a request. msgspec must be able to encode the value that `answer` returns. An EngineError that it
    raises is sent to the parent; MemoryError and RecursionError are sent as LimitExceeded. Any other exception ends
    the program.
    """
    channel = Channel(end, receives)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionError):
        channel.send(Reply())
        while True:
            request = channel.receive_one()
            begin_request()
            channel.send(_reply(answer, request))


def _reply(answer: Callable[[Any], Any], request: Any) -> Reply:
    try:
        return Reply(msgspec.Raw(msgspec.msgpack.encode(answer(request))))
    except EngineError as error:
        return Reply(error=type(error).__name__, text=str(error))
    except MemoryError:
        limit = applied().memory_bytes
        size = f" of {limit / (1 << 30):.1f} GiB" if limit else ""
        return Reply(error="LimitExceeded", text=f"this needs more memory than the limit{size}")
    except RecursionError:
        return Reply(error="LimitExceeded", text="this is nested too deeply")
