"""Sending of a model to a node: what the node does not have goes there in blocks, several at a time."""

import os
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from engine.cluster.model_files import BLOCK_BYTES, Have, ModelOffer, Tell
from engine.errors import EngineError, ModelError
from engine.files import open_regular
from engine.ids import new_id
from engine.units import quantity

IN_FLIGHT = 4
"""Blocks that are on their way at the same time."""

POLL_S = 0.2
"""Interval between questions to a node that checks its files, or that another transfer keeps busy."""

ANSWERS_WITHIN_S = 60.0
"""Longest wait for the answer of a node that is there: for one block to be written."""

_MOST_IDLE = 5
"""Answers in a row after which nothing more had arrived, before the transfer is given up."""


class FilesOfNode(Protocol):
    """The calls of `NodeFiles` on a node of this name; `call` returns at once, and the future raises an EngineError
    once the node is lost, or has not answered in time."""

    @property
    def name(self) -> str: ...

    def call(self, method: str, *arguments: Any) -> "Future[Have]": ...


def send_model(offer: ModelOffer, node: FilesOfNode, tell: Tell, block_bytes: int = BLOCK_BYTES) -> str:
    """Return the path of a model on a node, after sending what the node does not have of it.

    `tell` is called often, also while the node is busy; what it raises ends the transfer, which goes on from there when
    it is started again. Raises ModelError, which names the node, where the node cannot have the model, does not answer,
    or where a file of this machine changes meanwhile; and WorkerDied of a node that is lost or is late.
    """
    sender = new_id()
    try:
        return _Sending(offer, node, tell, sender, block_bytes).run()
    except BaseException:
        with suppress(EngineError):
            node.call("abort", offer.key, sender)
        raise


class _Sending:
    """One transfer. Each step returns the node's answer, from which the next one follows."""

    def __init__(self, offer: ModelOffer, node: FilesOfNode, tell: Tell, sender: str, block_bytes: int) -> None:
        self._offer, self._node, self._tell = offer, node, tell
        self._sender, self._block_bytes = sender, block_bytes
        self._states = [_state(path) for path in offer.places()]

    def run(self) -> str:
        have, num_idle = self._ask("offer", self._offer.to_dict(), self._sender), 0
        while have.state != "whole":
            self._report(have)
            before = have
            match have.state:
                case "failed":
                    raise ModelError(f"Node {self._node.name} cannot have {self._offer.name}: {have.error}.")
                case "wanted":
                    have = self._send_file(have)
                case _:
                    if have.state != "lost":
                        time.sleep(POLL_S)
                    have = self._ask("offer", self._offer.to_dict(), self._sender)
            is_idle = have.state in ("wanted", "lost") and (have.index, have.offset) == (before.index, before.offset)
            num_idle = num_idle + 1 if is_idle else 0
            if num_idle > _MOST_IDLE:
                raise ModelError(f"Node {self._node.name} takes no more of {self._offer.name}: start it again.")
        return have.path

    def _send_file(self, have: Have) -> Have:
        """Send the rest of one file, and end it; return early with an answer that asks for something else."""
        index, offset = have.index, have.offset
        if not 0 <= index < len(self._offer.files) or not 0 <= offset <= self._offer.files[index].size:
            raise ModelError(
                f"Node {self._node.name} asked for byte {offset} of file {index}, which {self._offer.name} does not "
                "have: install the same Logitbench there."
            )
        path, size = self._offer.places()[index], self._offer.files[index].size
        sent: deque[tuple[int, Future[Have]]] = deque()
        try:
            with open_regular(path) as file:
                while offset < size or sent:
                    while offset < size and len(sent) < IN_FLIGHT:
                        data = os.pread(file.fileno(), min(self._block_bytes, size - offset), offset)
                        self._check_unchanged(index, is_short=not data)
                        sent.append((offset + len(data), self._call("block", index, offset, data)))
                        offset += len(data)
                    end, answer = sent.popleft()
                    have = self._answer(answer)
                    if have.state != "wanted" or have.index != index or have.offset < end:
                        return have
                    self._report(have)
        except OSError as error:
            raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
        self._check_unchanged(index)
        return self._answer(self._call("finish", index))

    def _check_unchanged(self, index: int, *, is_short: bool = False) -> None:
        path = self._offer.places()[index]
        if is_short or _state(path) != self._states[index]:
            raise ModelError(f"{path}: changed while it was sent to node {self._node.name}: open the model again")

    def _call(self, method: str, *arguments: Any) -> "Future[Have]":
        return self._node.call(method, self._offer.key, self._sender, *arguments)

    def _ask(self, method: str, *arguments: Any) -> Have:
        return self._answer(self._node.call(method, *arguments))

    def _answer(self, answer: "Future[Have]") -> Have:
        try:
            return answer.result(ANSWERS_WITHIN_S)
        except TimeoutError:
            failure = f"did not answer for {ANSWERS_WITHIN_S:g} s while it received {self._offer.name}"
            raise ModelError(f"Node {self._node.name} {failure}: start it again, it goes on from there.") from None

    def _report(self, have: Have) -> None:
        name, node, total = self._offer.name, self._node.name, self._offer.size
        share = min(have.share, 1.0) if have.share > 0 else 0.0  # also where it is none
        match have.state:
            case "checking":
                doing = f"node {node} reads its copy of {name} for its hash"
            case "busy":
                doing = f"another transfer brings {name} to node {node}"
            case _:
                doing = f"{name} to node {node}: {quantity(share * total, 'B')} of {quantity(total, 'B')}"
        self._tell(share, doing)


def _state(path: Path) -> tuple[int, int]:
    """Return size and modification time; (-1, -1) of a file that is not there."""
    try:
        status = path.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns
