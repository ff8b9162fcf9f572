"""Output of a batch: answers and errors of its lines, appended to two files, which a restart continues."""

import os
import threading
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from engine.api.openai.batch_lines import Asked
from engine.api.openai.errors import ApiError
from engine.api.openai.file_store import CONTENT, FileStore, make_private
from engine.files import decoded_json, open_partial, open_regular
from engine.ids import new_id

OUTPUT, ERRORS = "output", "errors"
CHECKED_BYTES = 4 << 20
"""Bytes after which the room for more is looked at again."""


class Answer(NamedTuple):
    """Answer to a line, as its line of the output. is_error: it belongs into the file of errors."""

    number: int
    line: bytes
    is_error: bool


class _Numbered(msgspec.Struct, frozen=True):
    line: int


def answered(asked: Asked, body: bytes, request_id: str) -> Answer:
    """Return the answer of an endpoint."""
    response = {"status_code": 200, "request_id": request_id, "body": msgspec.Raw(body)}
    return _answer(asked, response, None)


def refused(asked: Asked, error: ApiError) -> Answer:
    """Return the error of an endpoint, or of the line itself."""
    if asked.error is not None:
        return _answer(asked, None, error.body()["error"])
    return _answer(asked, {"status_code": error.status, "request_id": new_id(), "body": error.body()}, None)


def _answer(asked: Asked, response: object, error: object) -> Answer:
    line = {
        "id": f"batch_req_{new_id()}",
        "custom_id": asked.custom_id,
        "line": asked.number,
        "response": response,
        "error": error,
    }
    is_error = error is not None or (isinstance(response, dict) and response["status_code"] != 200)
    return Answer(asked.number, msgspec.json.encode(line) + b"\n", is_error)


class Output:
    """The two files of one batch in its folder; a last line that a killed process left torn is cut off.

    numbers: lines that are answered; num_answered, num_refused: of both kinds. Any thread may call it. Raises OSError.
    """

    def __init__(self, folder: Path, files: FileStore) -> None:
        self._files = files
        self._lock = threading.Lock()
        self.numbers = set[int]()
        self._num_unchecked = CHECKED_BYTES
        self._parts = {kind: _Part(folder / kind) for kind in (OUTPUT, ERRORS)}
        for part in self._parts.values():
            self.numbers |= part.numbers

    @property
    def num_answered(self) -> int:
        """Lines with an answer."""
        return len(self._parts[OUTPUT].numbers)

    @property
    def num_refused(self) -> int:
        """Lines with an error."""
        return len(self._parts[ERRORS].numbers)

    def append(self, answers: list[Answer]) -> None:
        """Write answers to the disk; where that raises, none of them is written. Raises ApiError where it is full."""
        with self._lock:
            size = sum(len(answer.line) for answer in answers)
            if self._num_unchecked + size >= CHECKED_BYTES:
                self._files.check_total(size)
                self._num_unchecked = 0
            self._num_unchecked += size
            groups = {kind: [one for one in answers if one.is_error == (kind == ERRORS)] for kind in self._parts}
            try:
                for kind, group in groups.items():
                    self._parts[kind].write(group)
            except OSError:
                for part in self._parts.values():
                    part.undo()
                raise
            for kind, group in groups.items():
                self._parts[kind].keep(group)
                self.numbers.update(answer.number for answer in group)

    def close(self) -> None:
        """Close the files, after an append in progress."""
        with self._lock:
            for part in self._parts.values():
                part.close()


class _Part:
    """One of the two files. numbers: of its lines."""

    def __init__(self, folder: Path) -> None:
        make_private(folder)
        self._file: BinaryIO = open_partial(folder / CONTENT)
        os.fchmod(self._file.fileno(), 0o600)
        self.numbers = set[int]()
        self._end = 0
        with open_regular(folder / CONTENT) as written:
            for line in written:
                try:
                    number = decoded_json(line, _Numbered).line
                except ValueError:
                    break
                if not line.endswith(b"\n"):
                    break
                self.numbers.add(number)
                self._end += len(line)
        self.undo()

    def write(self, answers: list[Answer]) -> None:
        left = memoryview(b"".join(answer.line for answer in answers))
        while left:
            left = left[self._file.write(left) :]
        if answers:
            os.fsync(self._file.fileno())

    def keep(self, answers: list[Answer]) -> None:
        self.numbers.update(answer.number for answer in answers)
        self._end += sum(len(answer.line) for answer in answers)

    def undo(self) -> None:
        os.ftruncate(self._file.fileno(), self._end)
        os.lseek(self._file.fileno(), self._end, os.SEEK_SET)

    def close(self) -> None:
        self._file.close()
