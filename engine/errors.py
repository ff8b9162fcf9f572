"""Exceptions of the engine, as one tree.

    EngineError
    ├── ConfigError      a parameter, name or grammar is invalid; nothing was started. Fix the call and continue.
    ├── ModelError       a model file cannot be used, or its logits are not finite. Choose another file.
    │   └── MemoryRefused    weights and KV cache do not fit this machine; the text shows the arithmetic.
    ├── DownloadError    a model could not be downloaded from the hub; the text says why. Partial files stay.
    │   └── NetworkError     the hub does not answer, or the connection broke. Everything local still works; retry.
    ├── PromptTooLong    prompt longer than the context; the text has both numbers. Shorten it or raise n_ctx.
    ├── QueueFull        too many jobs wait in this pool. Wait, then submit again.
    ├── JobTimeout       `result(timeout=…)` timed out; the job continues. Also a TimeoutError.
    ├── BenchTimeout     a benchmark's sample or model load took too long: a worker hangs or is slow. The run goes on.
    ├── ProgramFailed    an external program (llama-bench, the compiler) failed; the text ends with its last output.
    ├── ServerFailed     an external engine cannot be reached, refuses, or breaks its answer off. Look at the server.
    ├── LimitExceeded    untrusted input exceeded its time or memory limit, or ended the process that read it.
    ├── WorkerDied       the process that ran this job ended; the pool starts another. Submit again.
    ├── PoolClosed       the pool was closed, or could not keep a worker alive. Open another.
    └── HistoryError     the history database cannot be used; nothing in it was changed.
        ├── HistoryLocked    another process has the file open; the text has its process id.
        └── HistoryNewer     the file was written by a newer version of this workbench.

The pages show the text of any of these next to the action that failed; any other exception is a defect of this code.
"""

import re
from typing import Self, TypeVar

MOST_CHARACTERS, LAST_CHARACTERS = 2_000, 600
"""Maximum length of an error text, and how much of its end is preserved: quoted user input may have any length, and
the advice on what to do next is at the end."""


def bounded(text: str) -> str:
    """Return an error text of at most MOST_CHARACTERS, its middle left out where it has more."""
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[: MOST_CHARACTERS - LAST_CHARACTERS - 3]}...{text[-LAST_CHARACTERS:]}"


E = TypeVar("E", bound=Exception)
_WORD = re.compile(r"(?:a|[a-z]{2,})(?=[ ,;](?!= ))")
"""First word of a sentence; a parameter before its value and names such as llama.cpp and n_ctx are none."""


def sentence(error: object) -> str:
    """Return an error's text as a sentence of its own, with a capital; elsewhere it follows a name and a colon."""
    text = str(error)
    return text[:1].upper() + text[1:] if _WORD.match(text) else text


def without_traceback(error: E) -> E:
    """Return a copy of an error without traceback, cause and context."""
    copy = type(error).__new__(type(error), *error.args)
    vars(copy).update(vars(error))
    return copy


class EngineError(Exception):
    """Base of all exceptions of the engine; the text says what happened, what it means and what to do next.

    Code that stores an error stores its `bare()` copy, and raises a `bare()` copy of the stored one: a traceback
    references every frame that the error passed through with all its variables, and each further `raise` of the same
    error extends it.
    """

    def bare(self) -> Self:
        """Return a copy without traceback, cause and context."""
        return without_traceback(self)

    def __str__(self) -> str:
        return bounded(super().__str__())


class ConfigError(EngineError, ValueError):
    """A parameter is out of range, unknown or malformed; the caller can correct it and call again."""


class ModelError(EngineError):
    """A model file is missing, damaged or unsupported, or its logits are not finite."""


class MemoryRefused(ModelError):
    """Weights and KV cache would not fit; refused before anything was loaded."""


class DownloadError(EngineError):
    """A model could not be downloaded from the hub: not found, not permitted, no disk space, or unexpected content."""


class NetworkError(DownloadError):
    """The hub cannot be reached or the connection broke; the same download, restarted, resumes where it stopped."""


class PromptTooLong(EngineError, ValueError):
    """The prompt has more tokens than the context; nothing was truncated."""

    @classmethod
    def of(cls, num_tokens: str, most: int) -> Self:
        """Return the error for a prompt of so many tokens, in words, where the context holds `most`."""
        return cls(
            f"the prompt is {num_tokens} tokens; the context holds {most:,}: "
            "shorten the prompt or open the model with a larger context (n_ctx)"
        )


class QueueFull(EngineError):
    """The pool's queue is full; recoverable by waiting."""


class JobTimeout(EngineError, TimeoutError):
    """The result was not available in time; the job itself continues."""


class BenchTimeout(EngineError, TimeoutError):
    """A sample or a model load exceeded its time limit; its workers are ended, others continue."""


class ProgramFailed(EngineError):
    """An external program ended without completing its work; its last output shows what to fix."""


class ServerFailed(EngineError):
    """An external engine cannot be reached, refuses a request, or answers with something else than its API says.

    status: of its answer, None where there was none. is_away: it took no request but may later, as nothing listens at
    its address, or what does says that the engine is not there yet.
    """

    def __init__(self, message: str, *, status: int | None = None, is_away: bool = False) -> None:
        super().__init__(message)
        self.status, self.is_away = status, is_away or status in (502, 503, 504)


class LimitExceeded(EngineError):
    """Untrusted input is too large or too complex for the process that reads it; nothing else was affected.

    is_busy: the process did not come to read it, so this one may be within the limits: try again.
    """

    def __init__(self, message: str, *, is_busy: bool = False) -> None:
        super().__init__(message)
        self.is_busy = is_busy


class WorkerDied(EngineError):
    """The worker process of this job ended before the job finished; the pool recovers by itself.

    is_blamed: the worker ended while it computed this very job, which would probably end the next worker too.
    """

    def __init__(self, message: str, *, is_blamed: bool = False) -> None:
        super().__init__(message)
        self.is_blamed = is_blamed


class PoolClosed(EngineError):
    """The pool accepts no more jobs."""


class HistoryError(EngineError):
    """The history database cannot be read or written."""


class HistoryLocked(HistoryError):
    """Another process has the database open."""


class HistoryNewer(HistoryError):
    """The database has migrations that this version does not know."""


_MOST_QUOTED = 100


def named_error(name: str, text: str, default: type[EngineError] = EngineError) -> EngineError:
    """Return the error of the class with this name, as another process reports it; of `default` where it is none."""
    found = globals().get(name)
    return (found if isinstance(found, type) and issubclass(found, EngineError) else default)(text)


def quoted(value: object) -> str:
    """Return a refused value as an error message quotes it: its repr, up to 100 characters of it."""
    try:
        text = repr(value)
    except Exception:  # an integer of more than 4,300 digits; classes of others may raise anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _MOST_QUOTED else f"{text[: _MOST_QUOTED - 1]}…"
