"""Messages between a pool and its workers."""

import msgspec

from engine.process.channel import Message
from engine.specs import PoolSpec, Request, Sampling

PROTOCOL = 5


# pool to worker


class Load(Message, frozen=True):
    """First message of a pool: the hello. cpus empty: no affinity."""

    protocol: int
    model: str
    spec: PoolSpec
    threads: int
    threads_batch: int
    cpus: list[int]
    prefill_share: int


class Start(Message, frozen=True):
    """Run one job; `prompt` is text or ids, `submitted` the monotonic clock (seconds) when it was submitted."""

    job: int
    prompt: str | list[int]
    sampling: Sampling
    request: Request
    submitted: float


class Cancel(Message, frozen=True):
    """Stop a job at the next decode step."""

    job: int


class Hold(Message, frozen=True):
    """Take messages but compute nothing, until one with `is_held` False comes."""

    is_held: bool


class Tokenize(Message, frozen=True):
    """Text to ids; `special` parses written control tokens, `add_bos` puts BOS first where the GGUF says so."""

    call: int
    text: str
    special: bool
    add_bos: bool = True


class Measure(Message, frozen=True):
    """Ask for the worker's own figures."""

    call: int


# worker to pool


class Loading(Message, frozen=True):
    """Progress of loading, 0 to 1."""

    progress: float


class Ready(Message, frozen=True):
    """The model is loaded: its vocabulary, tokens of one sequence, seconds of loading.

    began: when the loading began, the interpreter and its imports being ready (monotonic clock).
    """

    protocol: int
    pid: int
    began: float
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


class Failed(Message, frozen=True):
    """The worker could not load; it exits after this. `error` is a class name of engine.errors."""

    error: str
    text: str


class Started(Message, frozen=True):
    """A job left the queue: its prompt ids, how many of them were cached, the seed in use, seconds it waited."""

    job: int
    prompt_ids: list[int]
    num_cached: int
    seed: int
    queue_s: float


class Steps(Message, frozen=True):
    """New steps of one job: rows of results.step_dtype."""

    job: int
    is_prompt: bool
    rows: bytes


class Decoded(Message, frozen=True):
    """Everything one decode step gave."""

    steps: list[Steps]


class Ended(Message, frozen=True):
    """A job is over: a finish reason, or an error (class name and text). text_bytes: length of the text in bytes.

    threads, threads_batch: which computed most of its steps and of its prompt; None where none did.
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
    """The worker computes with other numbers of threads from now on."""

    threads: int
    threads_batch: int


class Answer(Message, frozen=True):
    """Reply to Tokenize (ids) or Measure (figures); with an error its class in `error` and its words in `text`."""

    call: int
    ids: list[int] = msgspec.field(default_factory=list)
    text: str = ""
    figures: dict[str, float] = msgspec.field(default_factory=dict)
    error: str = ""


ToWorker = Load | Start | Cancel | Hold | Tokenize | Measure
ToPool = Loading | Ready | Failed | Started | Decoded | Ended | InUse | Answer
