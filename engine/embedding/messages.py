"""What a pool says to the program that loads a model, and to the workers that come from it."""

from engine.process.channel import Message

PROTOCOL = 2


class Load(Message, frozen=True):
    """First message to the program: the model's folder or file, how it is computed, threads of each worker to come.

    exports: the folder in which other forms of this model are kept.
    """

    protocol: int
    path: str
    exports: str
    backend: str
    threads: int
    tokens_per_batch: int
    normalise: bool


class Loaded(Message, frozen=True):
    """The model is loaded: dimensions of a vector, most tokens of a text, seconds it took from the first import."""

    protocol: int
    pid: int
    dim: int
    max_tokens: int
    load_s: float


class Failed(Message, frozen=True):
    """The model could not be loaded; the program ends. `error` is a class name of engine.errors."""

    error: str
    text: str


class Ended(Message, frozen=True):
    """How a worker of the program ended, told when asked: its status as subprocess gives it, negative for a signal."""

    pid: int
    status: int


class Begun(Message, frozen=True):
    """First message of a worker, to its own socket."""

    pid: int


class Embed(Message, frozen=True):
    """Texts in UTF-8, and what is put before each of them."""

    texts: list[bytes]
    prefix: str


class Vectors(Message, frozen=True):
    """The answer: float32 rows in the order of the texts, their tokens without what was cut off, places of those cut.

    compute_s: seconds it took the worker.
    """

    rows: bytes
    num_tokens: int
    cut: list[int]
    compute_s: float


class Unusable(Message, frozen=True):
    """The model failed at these texts: at `place` among them if it is known, else -1."""

    place: int
    reason: str


ToProgram = Load
FromProgram = Loaded | Failed | Ended
PART = bytes(4)
"""What goes to a program with the socket of a worker to be."""


def ending_asked(pid: int) -> bytes:
    """The question how a worker ended."""
    return pid.to_bytes(len(PART), "little")


FromWorker = Begun | Vectors | Unusable
