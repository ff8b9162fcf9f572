"""Messages between a pool, the fork server that loads a model, and the workers forked from it."""

from engine.process.channel import Message

PROTOCOL = 3


class LoadEmbeddingModel(Message, frozen=True):
    """First message to the fork server: the model's folder or file, how to compute it, threads per worker.

    exports: the folder in which exported forms of this model are stored.
    """

    protocol: int
    path: str
    exports: str
    backend: str
    threads: int
    tokens_per_batch: int
    normalise: bool


class Loaded(Message, frozen=True):
    """Reply that the model is loaded: vector dimension, maximum tokens of a text, size of the vocabulary.

    load_s: load seconds including imports.
    """

    protocol: int
    pid: int
    dim: int
    max_tokens: int
    num_vocab: int
    load_s: float


class Failed(Message, frozen=True):
    """Reply that the model could not be loaded; the fork server ends. `error` is a class name of engine.errors."""

    error: str
    text: str


class Ended(Message, frozen=True):
    """Reply to `ending_asked`: a worker's exit status as in subprocess, negative for a signal."""

    pid: int
    status: int


class Begun(Message, frozen=True):
    """First message of a worker, on its own socket."""

    pid: int


class Embed(Message, frozen=True):
    """Request to embed texts: in UTF-8, where `prefix` is prepended to each, or as token ids, which are taken as they
    are."""

    texts: list[bytes | list[int]]
    prefix: str


class Vectors(Message, frozen=True):
    """Answer with vectors: float32 rows in the order of the texts, tokens after truncation, indices of truncated texts.

    compute_s: seconds it took the worker. num_tokens: None where an external engine does not report them.
    """

    rows: bytes
    num_tokens: int | None
    cut: list[int]
    compute_s: float


class Unusable(Message, frozen=True):
    """Answer that the model failed on these texts; `place` is the index of the text at fault, -1 where unknown."""

    place: int
    reason: str


ToProgram = LoadEmbeddingModel
FromProgram = Loaded | Failed | Ended
PART = bytes(4)
"""Data sent to the fork server along with the socket of a new worker."""


def ending_asked(pid: int) -> bytes:
    """Encode the request for how the worker `pid` ended."""
    return pid.to_bytes(len(PART), "little")


FromWorker = Begun | Vectors | Unusable
