"""Wire protocol: messages between a pool and its workers."""

import msgspec

from engine.process.channel import Message
from engine.specs import PoolSpec, Request, Sampling

PROTOCOL = 7


# pool to worker


class LoadModel(Message, frozen=True):
    """Load a model: the first message from a pool. cpus: cores to pin to, empty for no affinity."""

    protocol: int
    model: str
    spec: PoolSpec
    threads: int
    threads_batch: int
    cpus: list[int]
    prefill_share: int


class AddRequest(Message, frozen=True):
    """Run one job; `prompt` is text or ids, `submitted` the seconds from the worker's epoch to its submission."""

    job: int
    prompt: str | list[int]
    sampling: Sampling
    request: Request
    submitted: float


class Cancel(Message, frozen=True):
    """Stop a job at the next decode step."""

    job: int


class Hold(Message, frozen=True):
    """Accept messages but compute nothing until a Hold with `is_held` False arrives."""

    is_held: bool


class ReadClock(Message, frozen=True):
    """Request the worker's clock, from which the pool tells when Epoch was by its own."""


class Tokenize(Message, frozen=True):
    """Tokenise a text; `special` parses written control tokens, `add_bos` prepends BOS if the GGUF specifies it."""

    call: int
    text: str
    special: bool
    add_bos: bool = True


class Measure(Message, frozen=True):
    """Request the worker's own counters."""

    call: int


# worker to pool


class Clock(Message, frozen=True):
    """Reply to ReadClock: seconds since the worker's epoch, at which it began to load the model.

    Times in messages are seconds since that epoch, as clocks of two machines differ.
    """

    elapsed_s: float


class Loading(Message, frozen=True):
    """Load progress, 0 to 1."""

    progress: float


class Ready(Message, frozen=True):
    """The model is loaded: its vocabulary, context length of one sequence in tokens, load time in seconds.

    is_recurrent: a sequence cannot be cut, so that a prompt is reused only as a whole.
    """

    protocol: int
    pid: int
    load_s: float
    n_ctx: int
    pieces: list[bytes]
    kinds: bytes
    names: dict[int, str]
    bos: int | None
    add_bos: bool
    add_space_prefix: bool
    chat_template: str
    description: str
    is_recurrent: bool


class Failed(Message, frozen=True):
    """The worker failed, for example to load its model, and exits after this message.

    `error` is a class name of engine.errors.
    """

    error: str
    text: str


class Started(Message, frozen=True):
    """A job left the queue: its prompt ids, how many of them were cached, the seed in use, seconds in the queue."""

    job: int
    prompt_ids: list[int]
    num_cached: int
    seed: int
    queue_s: float


class Steps(Message, frozen=True):
    """New steps of one job: rows of steps.step_dtype."""

    job: int
    is_prompt: bool
    rows: bytes


class Decoded(Message, frozen=True):
    """Steps of all jobs since the last such message: those of one decode, or of several quick ones."""

    steps: list[Steps]


class Ended(Message, frozen=True):
    """A job is over: a finish reason, or an error (class name and text). text_bytes: length of the text in bytes.

    threads, threads_batch: thread counts that computed most decodes of its steps and of its prompt; None if there were
    none.
    """

    job: int
    finish_reason: str
    text_bytes: int
    prefill_s: float
    decode_s: float
    error: str
    text: str
    threads: int | None = None
    threads_batch: int | None = None


class InUse(Message, frozen=True):
    """The worker's thread counts have changed to these."""

    threads: int
    threads_batch: int


class Answer(Message, frozen=True):
    """Reply to Tokenize (ids) or Measure (figures); or an error, its class in `error` and its message in `text`."""

    call: int
    ids: list[int] = msgspec.field(default_factory=list)
    text: str = ""
    figures: dict[str, float] = msgspec.field(default_factory=dict)
    error: str = ""


ToWorker = LoadModel | AddRequest | Cancel | Hold | ReadClock | Tokenize | Measure
ToPool = Clock | Loading | Ready | Failed | Started | Decoded | Ended | InUse | Answer
