"""Files of answers: a JSON line for each prompt of a file, in its order, that a later run continues."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Self

import msgspec

from engine.errors import ConfigError, EngineError
from engine.exchange.prompt_files import FilePrompt, PromptFile
from engine.files import MOST_BYTES, decoded_json, named_path, open_partial, open_regular, read_regular, write_whole
from engine.jsonable import completion_to_dict
from engine.private_files import persons_umask
from engine.results import Completion

FORMAT, VERSION = "logitbench-answers", 1


class _Written(msgspec.Struct):
    """What is read of a written answer: which prompt it is of, and whether that failed."""

    index: int
    prompt_hash: str
    error: str | None


class AnswerFile:
    """Answers as JSON lines, appended one by one; `settings_path` beside it says how they were made.

    num_before: answers of earlier runs; end: bytes up to the end of the last whole line. Only one process at a time
    opens it. Raises ConfigError where it cannot be written, or is the file of the prompts.
    """

    def __init__(self, path: str | Path, prompts: PromptFile) -> None:
        self._name, self._path = str(path), named_path(path)
        self.settings_path = self._path.with_name(f"{self._path.name}.settings.json")
        self.num_before = self.num_failed_before = self.end = 0
        try:
            with persons_umask():
                self._file = open_partial(self._path)
        except OSError as error:
            self._refuse(f"cannot be written ({error.strerror}): choose another file")
        try:
            self._lock(prompts)
        except BaseException:
            self._file.close()
            raise

    def _lock(self, prompts: PromptFile) -> None:
        if os.path.samestat(os.fstat(self._file.fileno()), prompts.status):
            self._refuse("is the file of the prompts: choose another one for the answers")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._refuse("is being written by another process: wait for it, or choose another file")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def begin(self, settings: dict[str, Any], prompts: Iterator[FilePrompt]) -> FilePrompt | None:
        """Take from `prompts` those that earlier runs answered, and return the last of them.

        A line that a killed process left half written is cut off. Raises ConfigError where the file was begun with
        other settings or for other prompts, or is not one of answers; nothing was changed then.
        """
        if not os.fstat(self._file.fileno()).st_size:
            self._write_settings(settings)
            return None
        self._check_settings(settings)
        last = None
        with open_regular(self._path) as written:
            while line := written.readline(MOST_BYTES + 1):
                if len(line) > MOST_BYTES:
                    self._refuse(
                        f"line {self.num_before + 1:,} has more than {MOST_BYTES:,} bytes: choose another file"
                    )
                if not line.endswith(b"\n"):
                    break
                last = self._checked(line, prompts)
                self.num_before += 1
                self.end += len(line)
        os.ftruncate(self._file.fileno(), self.end)
        os.lseek(self._file.fileno(), self.end, os.SEEK_SET)
        return last

    def _checked(self, line: bytes, prompts: Iterator[FilePrompt]) -> FilePrompt:
        """Return the prompt that a written line answers, the next of `prompts`; raises ConfigError."""
        number = self.num_before + 1
        try:
            answer = decoded_json(line, _Written)
        except ValueError:
            self._refuse(f"line {number:,} is not an answer: choose another file")
        prompt = next(prompts, None)
        if prompt is None:
            self._refuse("has more answers than there are prompts: these are other prompts, choose another file")
        if (answer.index, answer.prompt_hash) != (prompt.index, prompt.hash):
            self._refuse(f"line {number:,} answers another prompt than the one given now: choose another file")
        self.num_failed_before += answer.error is not None
        return prompt

    def _write_settings(self, settings: dict[str, Any]) -> None:
        content = {"format": FORMAT, "version": VERSION, **settings}
        try:
            with persons_umask():
                write_whole(self.settings_path, json.dumps(content, ensure_ascii=False, indent=1).encode() + b"\n")
        except OSError as error:
            raise ConfigError(f"{self.settings_path}: cannot be written ({error.strerror})") from None

    def _check_settings(self, settings: dict[str, Any]) -> None:
        try:
            known = decoded_json(read_regular(self.settings_path), dict[str, Any])
        except (OSError, ValueError):
            self._refuse(f"is not empty, and {self.settings_path.name}, which says how it was made, cannot be read: "
                         "choose another file")  # fmt: skip
        if known.get("format") != FORMAT or known.get("version") != VERSION:
            self._refuse(f"{self.settings_path.name} is of another program or a later version: choose another file")
        if known.get("model_sha256") == settings["model_sha256"]:
            known["model"] = settings["model"]  # it has another name now
        for name, was, now in _differences(known, {"format": FORMAT, "version": VERSION, **settings}):
            self._refuse(f"was begun with {name} = {was}, and now it is {now}: choose another file for these answers")

    def append(self, prompt: FilePrompt, outcome: Completion | EngineError) -> None:
        """Append the answer to a prompt. Raises ConfigError where it cannot be written; no part of it stays then."""
        left = memoryview(answer_line(prompt, outcome))
        whole = self.end + len(left)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), self.end)
            self._refuse(f"cannot be written ({error.strerror}). What is answered is in it: the same again continues")
        self.end = whole

    def _refuse(self, reason: str) -> NoReturn:
        raise ConfigError(f"{self._name}: {reason}")


def _differences(known: dict[str, Any], given: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the name of each value that differs, and both values as JSON, shortened."""
    for name in dict.fromkeys((*known, *given)):
        was, now = known.get(name), given.get(name)
        if isinstance(was, dict) and isinstance(now, dict):
            yield from _differences(was, now, f"{prefix}{name}.")
        elif was != now:
            yield prefix + name, *(_short(json.dumps(value, ensure_ascii=False)) for value in (was, now))  # type: ignore[misc]


def _short(text: str) -> str:
    return text if len(text) <= 100 else text[:99] + "…"


def answer_line(prompt: FilePrompt, outcome: Completion | EngineError) -> bytes:
    """Return the line of an answer; steps only where something was recorded with them."""
    line: dict[str, Any] = {"index": prompt.index, "id": prompt.id, "prompt_hash": prompt.hash}
    if isinstance(outcome, Completion):
        fields = completion_to_dict(outcome)
        has_steps = outcome.steps.k or outcome.prompt_steps.records["flags"].any()
        left_out = {"id"} if has_steps else {"id", "steps", "prompt_steps", "prompt_ids"}
        line |= {name: value for name, value in fields.items() if name not in left_out} | {"error": None}
    else:
        nothing = ("text", "finish_reason", "is_context_full", "seed", "timings")
        line |= dict.fromkeys(nothing) | {"error": f"{type(outcome).__name__}: {outcome}"}
    return json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n"
