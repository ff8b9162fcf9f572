"""Engine protocol: what workbench, benchmarks and pages need of anything that generates tokens."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Literal, NamedTuple, Protocol, Self, Unpack, overload, runtime_checkable

from engine.chat_options import ChatOptions
from engine.errors import EngineError, PoolClosed
from engine.jobs import Job
from engine.map_progress import OnProgress
from engine.results import Completion
from engine.specs import MAX_RECORDED, Origin, PoolSpec, Request, RequestOptions, Sampling
from engine.vocabulary import Vocabulary

_ANCHORS = ("\n", ".", "a", "0", ")")
"""Texts of which one is a token by itself before nearly every other text."""


EXTERNAL = "external:"
"""What the name of an external engine has before it, where backends and engines of other kinds can be named too."""

LogprobsOf = Literal["model", "after samplers", "unknown"]
"""What log-probabilities are of: the model's own distribution, or what the sampler stages left of it."""


class Capabilities(NamedTuple):
    """What an engine can do; the defaults are those of engine.Pool, which reports everything.

    n_ctx: tokens of one sequence, 0 where that is not known; num_sequences: requests that it decodes at the same time.
    has_chat_template: `render_chat` works. is_recurrent: what it has computed of a text is reused only as a whole, so
    that another text with the same beginning is computed from its first token.

    has_ids: tokens have the model's own ids, in prompts and in answers, so that a text can be continued token by token;
    tokenizes: `tokenize` works. candidates_max: recorded candidates of a step, 0 where it reports no log-probabilities;
    logprobs_of: what these are of. scores_prompts: also the tokens of a prompt have them. is_exact: rank, entropy and
    normaliser are over the whole vocabulary, and the final probability and the draw are reported. inspects: sampler
    stages and watched words can be recorded, tokens forced. grammars: grammars and schemas are obeyed. seeds: the same
    seed gives the same draws.
    """

    n_ctx: int
    num_sequences: int
    has_chat_template: bool
    is_recurrent: bool = False
    has_ids: bool = True
    tokenizes: bool = True
    candidates_max: int = MAX_RECORDED
    logprobs_of: LogprobsOf = "model"
    scores_prompts: bool = True
    is_exact: bool = True
    inspects: bool = True
    grammars: bool = True
    seeds: bool = True

    def limited(self, request: Request) -> Request:
        """Return a request without the records that the engine does not make: fewer candidates, no sampler stages."""
        k = min(request.top_k, self.candidates_max)
        watched = request.watched if self.inspects else ()
        return replace(request, top_k=k, stages=request.stages and self.inspects and k > 0, watched=watched)


class Startup(NamedTuple):
    """Breakdown of the seconds from starting a worker until it is ready.

    interpreter_s: Python and its imports; load_s: weights and context; rest_s: the tokenizer's table and messages.
    """

    interpreter_s: float
    load_s: float
    rest_s: float


class WorkerInfo(NamedTuple):
    """Current state of one worker. cpus: cores it is pinned to, empty for all that the process may use.

    phase: current phase of its loop (engine.llama.phase.Phase, in lower case); phase_s: seconds in it, at least.
    threads: thread count for steps, threads_batch: for prompts; both vary if the engine was given no thread count.
    node: where it runs in a cluster, empty for this machine; is_leaving: it ends after its last job.
    """

    pid: int
    cpus: tuple[int, ...]
    num_running: int
    num_waiting: int
    phase: str
    phase_s: float
    threads: int
    threads_batch: int
    node: str = ""
    is_leaving: bool = False


class NodeInfo(NamedTuple):
    """State of one node of a cluster. cores: those that a program may use; llama: versions, commit, compiler and
    features of llama.cpp's libraries.

    reason: why the pool does not use it, as a predicate; empty where it may. difference: in what its versions differ
    from the first node's, as a predicate, where the pool uses it all the same. id: in Ray; given_name: as Ray lists it,
    while `name` has a part of the id where another node has the same.
    """

    name: str
    address: str
    cores: int
    memory_bytes: int
    free_bytes: int
    cpu: str
    llama: dict[str, str]
    num_workers: int
    reason: str
    difference: str = ""
    id: str = ""
    given_name: str = ""


class Engine(Protocol):
    """One loaded model. engine.Pool documents each method; any thread may call them.

    model: its path or address; spec: its parameters, with share_weights decided; chat_template: empty where it has
    none; threads: of each worker, at most; startup: of the slowest worker; ending: why it runs nothing any more, None
    while it does.
    """

    @property
    def model(self) -> str: ...
    @property
    def spec(self) -> PoolSpec: ...
    @property
    def capabilities(self) -> Capabilities: ...
    @property
    def vocabulary(self) -> Vocabulary: ...
    @property
    def chat_template(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def startup(self) -> Startup: ...
    @property
    def num_open(self) -> int: ...
    @property
    def ending(self) -> PoolClosed | None: ...

    def submit(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        generated: int = 0,
        forced: int = 0,
        job_id: str | None = None,
        origin: Origin | None = None,
        **options: Unpack[RequestOptions],
    ) -> Job: ...

    @overload
    def map(
        self,
        prompts: Iterable[str | Sequence[int]],
        sampling: Sampling | None = None,
        *,
        return_exceptions: Literal[False] = False,
        progress: OnProgress = False,
        **options: Unpack[RequestOptions],
    ) -> Iterator[Completion]: ...
    @overload
    def map(
        self,
        prompts: Iterable[str | Sequence[int]],
        sampling: Sampling | None = None,
        *,
        return_exceptions: bool,
        progress: OnProgress = False,
        **options: Unpack[RequestOptions],
    ) -> Iterator[Completion | EngineError]: ...

    def check_sampling(self, sampling: Sampling) -> None: ...

    def tokenize(self, text: str, *, special: bool = False) -> list[int]: ...

    def render_chat(
        self, messages: Sequence[dict[str, str]], options: ChatOptions | None = None
    ) -> tuple[str, list[int]]: ...

    def measure(self, timeout: float | None = None) -> list[dict[str, float]]: ...

    def workers(self) -> list[WorkerInfo]: ...

    def held(self) -> AbstractContextManager[None]: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self, reason: str = ...) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_error: object) -> None: ...


@runtime_checkable
class SpreadEngine(Engine, Protocol):
    """Engine whose workers may run on the nodes of a cluster; `nodes` is empty where they run on this machine."""

    def nodes(self) -> list[NodeInfo]: ...

    def add_worker(self, node: str = "") -> None: ...

    def remove_worker(self, node: str) -> None: ...


def mixture_of(engine: Engine) -> dict[str, str]:
    """Return in what nodes with workers differ in their versions from the first one, by "node NAME"."""
    nodes = engine.nodes() if isinstance(engine, SpreadEngine) else []
    return {f"node {node.name}": node.difference for node in nodes if node.num_workers and node.difference}


class OpenEngine(Protocol):
    """Function that loads a model; engine.Pool documents the parameters and the errors."""

    def __call__(
        self,
        model: str,
        spec: PoolSpec,
        *,
        build: str = "",
        on_progress: Callable[[float], object] | None = None,
        on_opening: Callable[[Callable[[], None]], object] = ...,
    ) -> Engine: ...


def continuation_ids(engine: Engine, text: str) -> list[int]:
    """Return the ids of `text` after other text: without a BOS token, and without the space that some tokenizers put
    before a text."""
    for anchor in _ANCHORS:
        before, ids = engine.tokenize(anchor), engine.tokenize(anchor + text)
        if ids[: len(before)] == before:
            return ids[len(before) :]
    vocabulary = engine.vocabulary
    ids = engine.tokenize(text)
    return ids[1:] if vocabulary.add_bos and ids[:1] == [vocabulary.bos] else ids
