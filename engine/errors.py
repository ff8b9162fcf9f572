"""Every failure of the engine, as one tree.

    EngineError
    ├── ConfigError      a parameter, name or grammar is wrong; nothing was started. Mend the call and go on.
    ├── ModelError       a model file cannot be used, or the model gave no usable numbers. Choose another file.
    │   └── MemoryRefused    weights and KV cache do not fit this machine; the arithmetic is in the text.
    ├── DownloadError    a model could not be fetched from the hub; the text says why, and what had come is kept.
    │   └── NetworkError     the hub does not answer, or the connection broke. Everything local still works; try again.
    ├── PromptTooLong    prompt longer than the context; both numbers are in the text. Shorten it or raise n_ctx.
    ├── QueueFull        too many jobs wait in this pool. Wait, then submit again.
    ├── JobTimeout       `result(timeout=…)` ran out of time; the job goes on. Also a TimeoutError.
    ├── BenchTimeout     a sample or a load of a benchmark took too long: a worker hangs or is slow. The run goes on.
    ├── ProgramFailed    a program beside ours (llama-bench, the compiler) gave up; its last words are in the text.
    ├── LimitExceeded    foreign input took more time or memory than it may have, or ended the process that read it.
    ├── WorkerDied       the process that ran this job ended; the pool starts another. Submit again.
    ├── PoolClosed       the pool was closed, or could not keep a worker alive. Open another.
    └── HistoryError     the history database cannot be used; nothing in it was changed.
        ├── HistoryLocked    another process owns the file; its number is in the text.
        └── HistoryNewer     the file was written by a newer version of this workbench.

The pages show the text of any of these where the person is looking; anything else is a defect of ours.
"""

from typing import Self

MOST_CHARACTERS, LAST_CHARACTERS = 2_000, 600
"""Of a failure's text: what a person wrote and the text quotes may be without end; what to do next stands last."""


class EngineError(Exception):
    """Base of all failures; the text says what happened, what it means and what to do next.

    Whoever keeps one keeps `bare()` of it, and raises `bare()` of what is kept: a traceback holds every frame that an
    error passed through with all its variables, and each further `raise` of the same error adds to it.
    """

    def bare(self) -> Self:
        """A copy without traceback, cause and context."""
        copy = type(self).__new__(type(self), *self.args)
        vars(copy).update(vars(self))
        return copy

    def __str__(self) -> str:
        text = super().__str__()
        if len(text) <= MOST_CHARACTERS:
            return text
        return f"{text[: MOST_CHARACTERS - LAST_CHARACTERS - 3]}...{text[-LAST_CHARACTERS:]}"


class ConfigError(EngineError, ValueError):
    """A parameter is out of range, unknown or malformed: seen by the caller, who mends it and calls again."""


class ModelError(EngineError):
    """A model file is missing, damaged or unsupported, or its logits are not finite."""


class MemoryRefused(ModelError):
    """Weights and KV cache would not fit; refused before anything was loaded."""


class DownloadError(EngineError):
    """A model could not be fetched from the hub: not found, not allowed, no room, or not what was promised."""


class NetworkError(DownloadError):
    """The hub cannot be reached or broke off; the same download, started again, goes on where it stopped."""


class PromptTooLong(EngineError, ValueError):
    """The prompt has more tokens than the context; nothing was cut."""


class QueueFull(EngineError):
    """The pool's waiting room is full; recoverable by waiting."""


class JobTimeout(EngineError, TimeoutError):
    """The result was not there in time; the job itself goes on."""


class BenchTimeout(EngineError, TimeoutError):
    """A sample was not finished, or a model not loaded, in the time allowed; its workers are ended, others go on."""


class ProgramFailed(EngineError):
    """A program that is not ours ended without doing its work: what it said last tells what to mend."""


class LimitExceeded(EngineError):
    """Foreign input is too large or too complex for the process that reads it; nothing else was disturbed."""


class WorkerDied(EngineError):
    """The worker process of this job ended before the job did; the pool recovers by itself."""


class PoolClosed(EngineError):
    """The pool takes no more jobs."""


class HistoryError(EngineError):
    """The history database cannot be read or written."""


class HistoryLocked(HistoryError):
    """Another process has the database open."""


class HistoryNewer(HistoryError):
    """The database has migrations that this version does not know."""
