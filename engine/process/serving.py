"""Request loop of a child program, which answers requests sequentially."""

import contextlib
import math
import socket
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import psutil

from engine.errors import EngineError, LimitExceeded
from engine.process.channel import Channel, Message
from engine.process.limits import applied, begin_request

MOST_HELD = 0.5
"""Share of the address space free at its start that a program may hold after a request: beyond it, it is spent."""


class Ping(Message, frozen=True):
    """Request that every program answers at once."""


class Reply(Message, frozen=True):
    """Answer to one request, or the class and text of an EngineError. A program's first reply, sent once it is ready,
    has neither.

    is_spent: the request took so much of the program's memory that later ones might fail for it; it must be replaced.
    """

    answer: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: str = ""
    text: str = ""
    is_spent: bool = False


def serve(
    end: socket.socket, receives: Any, answer: Callable[[Any], Any], *, is_idle: Callable[[], bool] = lambda: True
) -> None:
    """Report that this program is ready, then answer every request until the parent hangs up.

    receives: type of a request. msgspec must be able to encode the value that `answer` returns. An EngineError that it
    raises is sent to the parent; MemoryError and RecursionError are sent as LimitExceeded, text that is not UTF-8 as
    ConfigError. Any other exception ends the program. is_idle: False between the requests of one task, during which the
    program may hold any memory.
    """
    channel = Channel(end, receives | Ping)
    most_bytes = _most_address_space()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionError):
        channel.send(Reply())
        while True:
            request = channel.receive_one()
            if isinstance(request, Ping):
                channel.send(Reply())
                continue
            begin_request()
            reply = _reply(answer, request)
            if is_idle() and psutil.Process().memory_info().vms > most_bytes:
                reply = msgspec.structs.replace(reply, is_spent=True)
            channel.send(reply)


def _most_address_space() -> float:
    """Return the bytes of address space above which this program is spent; infinite where it has no limit."""
    limit = applied().memory_bytes
    if limit is None or sys.platform != "linux":
        return math.inf
    used = psutil.Process().memory_info().vms
    return used + MOST_HELD * (limit - used)


def _reply(answer: Callable[[Any], Any], request: Any) -> Reply:
    try:
        return Reply(msgspec.Raw(msgspec.msgpack.encode(answer(request))))
    except EngineError as error:
        text = str(error).encode("utf-8", "backslashreplace").decode()
        return Reply(error=type(error).__name__, text=text, is_spent=isinstance(error, LimitExceeded))
    except UnicodeEncodeError:
        return Reply(error="ConfigError", text="contains half of a surrogate pair, which is not a character: remove it")
    except MemoryError:
        limit = applied().memory_bytes
        size = f" of {limit / (1 << 30):.1f} GiB" if limit else ""
        return Reply(error="LimitExceeded", text=f"this needs more memory than the limit{size}", is_spent=True)
    except RecursionError:
        return Reply(error="LimitExceeded", text="this is nested too deeply")
