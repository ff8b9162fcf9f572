"""Child programs that the tests start."""

import os
import re
import socket
import time
from collections.abc import Callable
from typing import Any

from engine.errors import ConfigError
from engine.process.serving import serve

HELD: list[bytearray] = []
TASKS: list[str] = []
STUCK = re.compile(r"(a+)+$")


def main(end: socket.socket, *words: str) -> None:
    """Answer requests by name; `words` are echoed."""

    def answer(request: dict[str, Any]) -> Any:
        return ANSWERS[request["do"]](request) if request["do"] in ANSWERS else [*words]

    serve(end, dict[str, Any], answer, is_idle=lambda: not TASKS)


def _refuse(request: dict[str, Any]) -> None:
    raise ConfigError(f"{request['text']} is refused")


def _complain(request: dict[str, Any]) -> None:
    raise ConfigError(request["text"].encode().decode("unicode-escape"))


def _die(request: dict[str, Any]) -> None:
    os.kill(os.getpid(), request["signal"])


def _hold(request: dict[str, Any]) -> int:
    HELD.append(bytearray(request["size"]))
    return os.getpid()


def _begin(_request: dict[str, Any]) -> int:
    TASKS.append("begun")
    return os.getpid()


def _end(_request: dict[str, Any]) -> int:
    TASKS.clear()
    return os.getpid()


def _write(request: dict[str, Any]) -> int:
    with open(request["path"], "wb") as file:
        return file.write(bytes(request["size"]))


ANSWERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "pid": lambda _request: os.getpid(),
    "add": lambda request: sum(request["numbers"]),
    "sleep": lambda request: time.sleep(request["seconds"]),
    "refuse": _refuse,
    "die": _die,
    "stuck": lambda _request: STUCK.match("a" * 100 + "b"),  # blocks the interpreter for longer than a lifetime
    "burn": lambda _request: sum(number * number for number in range(10**12)),
    "allocate": lambda request: len(bytearray(request["size"])),
    "hold": _hold,
    "begin": _begin,
    "end": _end,
    "say": lambda request: request["text"].encode().decode("unicode-escape"),
    "complain": _complain,
    "nest": lambda _request: _nested(0),
    "write": _write,
    "log": lambda request: os.write(1, request["text"].encode()),
    "fds": lambda _request: sorted(int(name) for name in os.listdir("/proc/self/fd")),
}


def _nested(depth: int) -> int:
    return _nested(depth + 1) + 1
