"""Targets of the other engines, measured like our own pool: the bare loop and `Llama.create_completion`.

Each of these two is a program of its own that holds the loaded model and answers one request at a time; llama-bench is
in `llama_bench`, servers are in `engine.bench.measurement.server_target`.
"""

import math
import time
from collections.abc import Collection, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from engine.backends.managed_programs import MANAGED
from engine.bench.baselines.llama_bench import LlamaBench
from engine.bench.baselines.llama_bench_program import PROGRAM, build_minutes
from engine.bench.measurement.clients import Deadline, Prompt, repeated
from engine.bench.measurement.embedding import open_embedding_target
from engine.bench.measurement.load_timeout import LoadTimeout
from engine.bench.measurement.metrics import RequestTimes, metrics_of
from engine.bench.measurement.server_target import memory_of, open_server_target
from engine.bench.measurement.target import (
    COLD_TIMEOUT_S,
    SAMPLE_S,
    Measured,
    Target,
    open_engine_target,
    steady_s,
)
from engine.bench.measurement.token_parts import PartTotals
from engine.bench.planning import engines
from engine.bench.planning.feasibility import Feasibility
from engine.bench.planning.plan import Arm, Cell, EmbeddingCell, PlannedCell
from engine.bench.planning.remote import RemoteBudget
from engine.cluster.specs import ClusterSpec
from engine.errors import BenchTimeout, ConfigError, LimitExceeded
from engine.machine.cores import cores_for, threads_for
from engine.machine.noise import NoiseWatch
from engine.models.llama_programs import find_program
from engine.process.child import huge_pages
from engine.process.program import Program
from engine.specs import PoolSpec

PROGRAMS: dict[Arm, str] = {"loop": "engine.llama.bare_loop", "create_completion": "engine.llama.high_level"}
_PREFIX_SEED = 1


def open_target(
    cell: PlannedCell,
    timeout: LoadTimeout | None = None,
    budget: RemoteBudget | None = None,
    cluster: ClusterSpec | None = None,
) -> Target:
    """Open the target of a configuration, of any question and engine, with its model loaded.

    budget: what may be sent to other machines, by default nothing. cluster: where a pool runs, None for this machine.
    Raises EngineError.
    """
    if isinstance(cell, EmbeddingCell):
        return open_embedding_target(cell, timeout, budget)
    if cell.arm in (engines.POOL, engines.TRANSFORMERS):
        return open_engine_target(cell, timeout, cluster=cluster)
    if engines.is_server(cell.arm):
        return open_server_target(cell, timeout, budget)
    return LlamaBench(cell) if cell.arm == "llama-bench" else ProgramTarget(cell, timeout)


class Missing(NamedTuple):
    """An engine that cannot run on this machine: how to obtain it, and whether building it would."""

    remedy: str
    can_be_built: bool


def missing_engines(model: str, names: Collection[Arm] = engines.ENGINES) -> dict[Arm, Missing]:
    """Return those of the named engines that cannot run a model on this machine, each once with its reason."""
    feasibility, found = Feasibility(), dict[Arm, Missing]()
    for name in names:
        if name == "llama-bench":
            found |= _missing_llama_bench()
        elif name in MANAGED and (missing := feasibility.missing(name)):
            found[name] = Missing(missing, False)
        elif name == engines.TRANSFORMERS and (problem := feasibility.torch_problem(model)):
            found[name] = Missing(problem, False)
    return found


def _missing_llama_bench() -> dict[Arm, Missing]:
    try:
        if find_program(PROGRAM):
            return {}
    except ConfigError as error:
        return {"llama-bench": Missing(str(error), False)}
    return {"llama-bench": Missing(f"Build llama-bench (about {build_minutes()} min)", True)}


def open_program(
    arm: Arm, model: str, pool: PoolSpec, build: str = "", timeout: LoadTimeout | None = None
) -> tuple[Program, dict[str, Any]]:
    """Start the program of a runtime with the model loaded, and return it with its reply (`engine.llama.arm.Ready`).

    Raises BenchTimeout, WorkerDied or ModelError; the program is then no longer running.
    """
    program = Program(PROGRAMS[arm], does=f"runs {PROGRAMS[arm]}", environment=huge_pages(), build=build)
    (timeout or LoadTimeout()).begins(program.close)
    threads = pool.threads or threads_for(pool.instances)
    load = {
        "model": model,
        "spec": pool.to_dict(),
        "threads": threads,
        "threads_batch": pool.threads_batch or threads,
        "cpus": cores_for(0, threads) if pool.pin else [],
    }
    try:
        return program, _ask(program, load, Deadline(COLD_TIMEOUT_S))
    except BaseException:
        program.close()
        raise


class ProgramTarget:
    """Target of a configuration of the runtime "loop" or "create_completion".

    The facts hold the parts of the time per token (see `time_breakdown`) over all samples so far.
    """

    remark = ""

    def __init__(self, cell: Cell, timeout: LoadTimeout | None = None) -> None:
        self._cell = cell
        self._program, ready = open_program(cell.arm, cell.model, cell.pool, cell.build, timeout)
        controls = set(ready["controls"])
        self._words = np.array([token for token in range(ready["num_vocab"]) if token not in controls])
        self._bos = ready["bos"]
        self._facts = {
            "interpreter_s": ready["began"] - self._program.started_at,
            "load_warm_s": ready["load_s"],
        }
        asked = cell.workload
        self._sample_s = asked.duration_s if asked.arrival == "users" else SAMPLE_S
        self._num_repetitions = 1
        self._parts = PartTotals()

    @property
    def facts(self) -> Mapping[str, float]:
        """Seconds of loading, repetitions in a sample, and the parts of the time per token so far."""
        return {**self._facts, "repetitions": self._num_repetitions, **self._parts.facts()}

    def warm_up(self, timeout_s: float) -> None:
        """Repeat the workload until its time is steady, then set how many repetitions make up a sample."""
        deadline = Deadline(timeout_s)
        random = np.random.default_rng()
        seconds = steady_s(lambda: self._once(random, 0, deadline)["wall_s"])
        self._num_repetitions = math.ceil(self._sample_s / seconds)

    def sample(self, seed: int, timeout_s: float) -> Measured:
        """Run as many repetitions as make up a sample, and more until it is long enough."""
        deadline = Deadline(timeout_s)
        random = np.random.default_rng(seed)
        started_at = time.time()
        with NoiseWatch([self._program.pid]) as watch:
            answers = repeated(
                lambda: self._once(random, seed, deadline), itemgetter("wall_s"), self._num_repetitions, self._sample_s
            )
        measured_s = sum(answer["wall_s"] for answer in answers)
        for answer in answers:
            self._parts.add(_parts(answer), answer["wall_s"], len(answer["token_times"][0]))
        requests = [self._times(answer) for answer in answers]
        is_user = self._cell.workload.arrival == "users"
        metrics = metrics_of([[requests]] if is_user else [[[one]] for one in requests], self._cell.objective)
        inside = sum(answer["parts"]["prefill_s"] + answer["parts"]["decode_s"] for answer in answers)
        metrics |= watch.use() | memory_of([self._program.pid]) | {"decode_share": inside / measured_s}
        return Measured(started_at, watch.seconds, metrics, watch.values(), watch.flag(), watch.programs())

    def close(self) -> None:
        """End the program."""
        self._program.close()

    def _once(self, random: np.random.Generator, seed: int, deadline: Deadline) -> dict[str, Any]:
        asked = self._cell.workload
        is_random = asked.asked == "tokens"
        question = {
            "prompts": [self._prompt(random)],
            "num_generated": max(1, asked.num_generated),
            "depth": asked.depth if is_random else 0,
            "seed": seed,
            "ignores_end": is_random,
        }
        return _ask(self._program, question, deadline)

    def _prompt(self, random: np.random.Generator) -> Prompt:
        """Return a text of the workload, or the same random ids that the pool gets."""
        asked = self._cell.workload
        if asked.asked == "prompts":
            return asked.prompts[int(random.integers(len(asked.prompts)))]
        head = self._ids(np.random.default_rng(_PREFIX_SEED), asked.depth)
        ids = [*head, *self._ids(random, max(1, asked.num_prompt))]
        return ids if self._bos is None else [self._bos, *ids[1:]]

    def _ids(self, random: np.random.Generator, num: int) -> list[int]:
        ids: list[int] = self._words[random.integers(0, len(self._words), num)].tolist()
        return ids

    def _times(self, answer: Mapping[str, Any]) -> RequestTimes:
        asked = self._cell.workload
        (moments,), (num_prompt,) = answer["token_times"], answer["num_prompt"]
        return RequestTimes(
            asked=answer["submitted"],
            started=answer["submitted"],
            first=moments[0],
            tokens=np.array(moments if asked.num_generated else [], np.float64),
            num_computed=num_prompt if asked.num_prompt else 0,
        )


def _ask(program: Program, request: Mapping[str, Any], deadline: Deadline) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = program.ask(request, deadline.left_s)
    except LimitExceeded as error:
        raise BenchTimeout(f"{error}: it hangs or is too slow; reduce the workload or allow more time") from error
    return answer


def _parts(answer: Mapping[str, Any]) -> dict[str, float]:
    return {name.removesuffix("_s"): seconds for name, seconds in answer["parts"].items()}
