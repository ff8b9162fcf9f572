"""Target of a server: measured from outside, by when its tokens come; its processes are known if it is started here."""

import math
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Unpack

import psutil

from engine.backends.connecting import OnOpening, open_known
from engine.backends.dialects import CHAT
from engine.backends.managed import open_managed
from engine.backends.managed_programs import MANAGED
from engine.backends.openai_server import ServerEngine
from engine.backends.seen_vocabulary import SeenVocabulary
from engine.bench.measurement.clients import Deadline
from engine.bench.measurement.load_generator import Bound, LoadGenerator
from engine.bench.measurement.load_timeout import LoadTimeout
from engine.bench.measurement.metrics import metrics_of
from engine.bench.measurement.prompt_tokens import PromptTokens
from engine.bench.measurement.target import (
    SAMPLE_S,
    Measured,
    no_collection,
    repetitions_for,
    steady_s,
    warm,
    without_others,
)
from engine.bench.planning import engines
from engine.bench.planning.plan import Cell
from engine.bench.planning.remote import RemoteBudget
from engine.errors import WorkerDied
from engine.jobs import Job
from engine.machine.noise import NoiseWatch
from engine.models.tokenizer import Tokenizer
from engine.protocol import Engine, Startup
from engine.specs import RequestOptions, Sampling
from engine.vocabulary import TokenKind, Vocabulary


class Served(NamedTuple):
    """A server that answers. tokens: those of its prompts; pids: of its processes, None where it was not started here.

    remark: what a reader of its figures must know.
    """

    engine: Engine
    tokens: PromptTokens
    pids: Callable[[], Collection[int]] | None
    remark: str
    bound: Bound | None = None


class ServerTarget:
    """Target whose requests a server answers; other configurations may use the same server, one at a time.

    Time, speed and, where it is started here, processor time and memory of it and its children.
    """

    def __init__(
        self, cell: Cell, served: Served, facts: dict[str, float] | None = None, *, sample_s: float = SAMPLE_S
    ) -> None:
        self.engine, self.remark, self.facts = served.engine, served.remark, dict(facts or {})
        self._served, self._sample_s = served, sample_s
        self._load = LoadGenerator(served.engine, cell.workload, served.tokens, served.bound)
        self._objective = cell.objective
        self._num_repetitions = 1

    def beside(self, cell: Cell) -> "ServerTarget":
        """Return a target on the same server for a configuration that differs only in its requests."""
        facts = {name: value for name, value in self.facts.items() if name != "repetitions"}
        return ServerTarget(cell, self._served, facts, sample_s=self._sample_s)

    @property
    def has_ids_of_file(self) -> bool:
        """True where it was started here with the configuration's file, and reports the ids of its tokens."""
        can = self.engine.capabilities
        return self._served.pids is not None and can.has_ids and can.logprobs_of == "model"

    def submit(self, prompt: str | Sequence[int], sampling: Sampling, **options: Unpack[RequestOptions]) -> Job:
        """Submit a request that is not measured, within the limits of the load."""
        if self._served.bound is not None:
            self._served.bound.before_each()
        return self.engine.submit(prompt, sampling, **options)

    def warm_up(self, timeout_s: float) -> None:
        """Repeat until steady, and compute the number of repetitions for one sample; elsewhere send one request."""
        deadline = Deadline(timeout_s)
        if self._served.bound is not None:
            self._load.first_token_s(deadline)
            return
        seconds = steady_s(lambda: self._load.once(deadline))
        self._num_repetitions = repetitions_for(self._sample_s, seconds)
        self.facts["repetitions"] = self._num_repetitions

    def sample(self, seed: int, timeout_s: float) -> Measured:
        """Measure once; raises WorkerDied where another process has replaced that of the server meanwhile."""
        deadline = Deadline(timeout_s)
        if self._served.bound is None:
            self._load.wake(deadline)
        pids = self._pids()
        with no_collection(), NoiseWatch(pids) as watch:
            started_at = time.time()
            repetitions = self._load.run(seed, self._num_repetitions, self._sample_s, deadline)
        metrics, noise, flag = metrics_of(repetitions, self._objective), watch.values(), watch.flag()
        if self._served.pids is None:
            metrics["workbench_share"] = watch.use()["workbench_share"]
            noise, flag = without_others(noise, watch.seconds)
            return Measured(started_at, watch.seconds, metrics, noise, flag)
        if self._pids() != pids:
            raise WorkerDied("a process of the server ended during the measurement, so the sample was dropped")
        metrics |= watch.use() | memory_of(pids)
        return Measured(started_at, watch.seconds, metrics, noise, flag, watch.programs())

    def close(self) -> None:
        """Close the connection, and end the server where it was started here, even where other targets use it."""
        self.engine.close()

    def _pids(self) -> list[int]:
        return sorted(self._served.pids()) if self._served.pids else []


def open_server_target(
    cell: Cell, timeout: LoadTimeout | None = None, budget: RemoteBudget | None = None, *, sample_s: float = SAMPLE_S
) -> ServerTarget:
    """Start the server of a configuration, or connect to it, and return its target.

    budget: what may be sent to other machines, by default nothing. Raises ConfigError where that was not confirmed,
    ServerFailed, ModelError, and the error of an ended `timeout`.
    """
    if timeout is None:
        with LoadTimeout() as timeout:
            return open_server_target(cell, timeout, budget, sample_s=sample_s)
    begins = timeout.begins
    facts = dict[str, float]()
    if engines.is_external(cell.arm):
        served = _connected(cell, budget or RemoteBudget(), begins)
    else:
        warm(cell.model)
        served, startup = _started(cell, begins)
        facts = {"load_warm_s": startup.load_s, "interpreter_s": startup.interpreter_s}
    try:
        return ServerTarget(cell, served, facts, sample_s=sample_s)
    except BaseException:
        served.engine.close()
        raise


def memory_of(pids: Sequence[int]) -> dict[str, float]:
    """Return PSS and private memory of processes, in bytes; nothing where one of them cannot be read."""
    with suppress(psutil.Error):
        found = [psutil.Process(pid).memory_full_info() for pid in pids]
        return {
            "pss_bytes": sum(getattr(one, "pss", math.nan) for one in found),
            "private_bytes": sum(one.uss for one in found),
        }
    return {}


def _started(cell: Cell, begins: OnOpening) -> tuple[Served, Startup]:
    """Start a server on the configuration's model, and return it with the parts of the time that this took."""
    tokenizer = Tokenizer(Path(cell.model))
    try:
        vocabulary = tokenizer.vocabulary
    finally:
        tokenizer.close()
    (kind,) = (kind for kind in MANAGED if kind == cell.arm)
    engine = open_managed(kind, cell.model, cell.pool, on_opening=begins)
    try:
        has_ids = engine.capabilities.has_ids
        if isinstance(engine.vocabulary, SeenVocabulary) and has_ids:
            _teach(engine.vocabulary, vocabulary)
        tokens = PromptTokens.of_ids(vocabulary) if has_ids else PromptTokens.of_words(vocabulary)
        remark = _remark(cell, engine, tokens)
    except BaseException:
        engine.close()
        raise
    return Served(engine, tokens, lambda: _with_children(engine.pids), remark), engine.startup


def _teach(known: SeenVocabulary, vocabulary: Vocabulary) -> None:
    """Note all tokens of the model, so that none of a prompt is asked of the server while it is measured."""
    for token, piece in enumerate(vocabulary.pieces):
        known.learn(token, piece, TokenKind(vocabulary.kinds[token]), vocabulary.names.get(token, ""))


def _connected(cell: Cell, budget: RemoteBudget, begins: OnOpening) -> Served:
    """Connect to a known engine; to one on another machine only where that was confirmed."""
    known, bound = engines.known_engine(cell.arm), None
    if engines.is_remote(cell.arm):
        budget.check({known.url: 1})
        bound = Bound(lambda: budget.take(known.url))
    engine = open_known(known, cell.pool.parallel, begins)
    is_whole = engine.capabilities.has_ids and not isinstance(engine.vocabulary, SeenVocabulary)
    tokens = PromptTokens.of_ids(engine.vocabulary) if is_whole else PromptTokens.of_common_words()
    if engine.capabilities.has_ids and not is_whole:
        tokens = tokens._replace(ends=engine.vocabulary.end_tokens)
    remark = (
        f"{_remark(cell, engine, tokens)}; model: {engine.found.model}; memory and processor use: not measured, as it "
        "was not started here"
    )
    return Served(engine, tokens, None, remark, bound)


def _remark(cell: Cell, engine: ServerEngine, tokens: PromptTokens) -> str:
    """Return what its requests were, where they may differ from those of the pool."""
    has_ids, is_own = engine.capabilities.has_ids, cell.workload.asked == "prompts"
    note = "prompts: the texts of the plan" if is_own else "prompts: random token ids"
    if tokens.is_text and not is_own:
        reason = "its vocabulary is not known" if has_ids else "it takes no token ids"
        note = f"prompts: texts of as many words, as {reason}"
    if engine.found.form is CHAT:
        note += "; each is a chat message, to which a template adds tokens"
    if not has_ids:
        note += "; it may reuse the beginnings of earlier prompts"
    return note if tokens.ends or is_own else f"{note}; an answer may end early, as its end cannot be barred"


def _with_children(pids: Sequence[int]) -> set[int]:
    """Return processes and their children, as far as they run."""
    found = set(pids)
    for pid in pids:
        with suppress(psutil.Error):
            found |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return found
