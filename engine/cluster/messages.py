"""Wire protocol between this program and the agents, one on each node, that start worker programs there."""

from typing import Annotated, Any

import msgspec

from engine.process.channel import Message

PROTOCOL = 2
"""Version of these messages; the first field of the first message, so that an agent of another version is known."""

REPORT_S = 0.5
"""Interval of an agent's reports, and of the keep-alive messages sent to it."""

WAITED_S, LOST_S = 15.0, 30.0
"""A silent connection is waited for; its node gets no more workers after WAITED_S, and counts as lost after LOST_S, on
both sides."""


# to the agent


class StartWorker(Message, frozen=True):
    """Start a worker program (a module) that dials the front with `token`, which is valid once.

    worker: number by which later messages name it. build: folder of llama.cpp libraries on the node, empty for those of
    its Python package.
    """

    worker: int
    token: bytes
    program: str
    build: str


class EndWorker(Message, frozen=True):
    """End a worker: hang up, and kill it after `patience_s` seconds."""

    worker: int
    patience_s: float


class StillHere(Message, frozen=True):
    """The front still runs; an agent that hears nothing for LOST_S ends its workers and itself."""


class Ask(Message, frozen=True):
    """A question about files, which the agent answers by an Answer of the same number, one after the other.

    what: name of a function in engine.cluster.questions; values: its arguments, as plain values.
    """

    number: int
    what: str
    values: list[Any]


# from the agent


class Hello(Message, frozen=True):
    """First message of an agent: what its node is.

    versions: of Python, of the packages there, by their names for pip, and of Logitbench's source files. cores: those
    that a program may use; memory_bytes, free_bytes: of its memory all and what is available; llama: versions, commit,
    compiler and features of llama.cpp's libraries, or why they cannot be loaded as "error".
    """

    protocol: int
    versions: dict[str, str]
    pid: int
    cpu: str
    cores: Annotated[int, msgspec.Meta(ge=1)]
    memory_bytes: int
    free_bytes: int
    llama: dict[str, str]


class Beat(Message, frozen=True):
    """Heartbeat of a worker, see engine.process.pulse.Reading; is_suspended: a signal keeps it from running."""

    worker: int
    num_beats: int
    num_stamps: int
    phase: int
    job: int
    is_suspended: bool


class Report(Message, frozen=True):
    """Available bytes of memory and the heartbeats of all workers."""

    free_bytes: int
    beats: list[Beat]


class Ended(Message, frozen=True):
    """A worker ended, or could not be started: how, as the predicate of a sentence, and the tail of its log."""

    worker: int
    ending: str
    log: str


class Answer(Message, frozen=True):
    """Answer to an Ask: a plain value, or an error (class name of engine.errors, and text)."""

    number: int
    value: Any = None
    error: str = ""
    text: str = ""


ToAgent = StartWorker | EndWorker | StillHere | Ask
FromAgent = Hello | Report | Ended | Answer


class Found(msgspec.Struct, frozen=True):
    """A node that Ray lists: its id, name and address, and the cores that it lends (`ray start --num-cpus`)."""

    id: str
    name: str
    address: str
    cores: int


# to and from the child program that speaks to Ray


class Connect(Message, frozen=True):
    """Connect to the cluster at this address, or to the one of this machine ("auto")."""

    address: str


class ListNodes(Message, frozen=True):
    """List the nodes that run, and the agents that ended with an error since the last time."""


class StartAgent(Message, frozen=True):
    """Start an agent on a node, which dials `host` and `port` with `token`."""

    node: str
    host: str
    port: int
    token: bytes


ToRay = Connect | ListNodes | StartAgent


class Listing(msgspec.Struct, frozen=True):
    """Nodes that run and lend cores; host: the address of this machine as they see it; failures: texts by node id.

    address: of the cluster, HOST:PORT, also where it was found by "auto".
    is_authenticated: the connection shows a token, as RAY_AUTH_MODE or a token file of this user demands.
    """

    nodes: list[Found]
    host: str
    failures: dict[str, str]
    is_authenticated: bool
    address: str
