"""Preset plans: one per question, one of two minutes, one for comparing machines; and one of less than a minute."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.backends.managed_programs import MANAGED
from engine.bench.planning import engines
from engine.bench.planning.candidates import planned_cells, settings_plan
from engine.bench.planning.embedding_cells import EXACT
from engine.bench.planning.feasibility import Feasibility
from engine.bench.planning.guesses import SHORTEST_SAMPLE_S, guess
from engine.bench.planning.plan import ARMS, Plan
from engine.bench.planning.preview import preview
from engine.embedding.backends import usable
from engine.embedding.models import EmbeddingModel
from engine.errors import ConfigError, quoted
from engine.machine.cores import num_cores
from engine.models.gguf import ModelFile
from engine.models.llama_programs import find_program
from engine.models.repacking import has_amx
from engine.protocol import EXTERNAL
from engine.stats import FIRST_LOOK

QUICK_S = 120.0
"""Estimated seconds that the plan "quick" stays within where it can."""

EMBEDDING_S = 240.0
"""The same for the plan "embedding", which loads every available backend."""

MOST_USERS = 32
_QUICK = (
    (3, (1, 4, 16), 64, 32),
    (2, (1, 4, 16), 64, 32),
    (2, (1, 8), 64, 32),
    (2, (1, 4), 32, 16),
    (1, (1, 4), 32, 16),
    (1, (1, 2), 16, 8),
)
"""Maximum layouts, sequences, tokens of a prompt, tokens generated: the first row that fits into the time is used."""

MINUTE_S = 50.0
"""Estimated seconds that `minute_plan` stays within where it can."""

_MINUTE = (
    (2, (1, 4, 16), 64, 32),
    (1, (1, 4, 16), 64, 32),
    (1, (1, 4), 32, 16),
    (1, (1,), 16, 8),
)
"""As _QUICK, with numbers of users in the place of sequences."""

ENGINES_S = 600.0
"""The same for the plan "engines"."""

_ENGINE_USERS = ((1, 4, 16), (1, 16), (1, 8), (1, 4))
_USERS_S = 5.0, 60.0
LLAMA_BENCH = "llama-bench"
_TIMEOUT_SAMPLES = 5
_LONGEST_TIMEOUT_S = 86_400


def preset(name: str, model: str | Path, cores: int | None = None) -> Plan:
    """Return the plan of that name for a model file.

    cores: number to use, None: all that this process may use. "quick" measures layouts × sequences, as many as fit into
    two minutes. "speed", "settings", "python", "engines", "users" and "embedding" correspond to the six questions, the
    last for an embedding model; "engines" has those that can run on this machine; "standard" is the same on every
    machine except for its layouts. The longest sample may take five times its guessed time. Raises ConfigError for
    other names.
    """
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {quoted(name)}; known: {', '.join(PRESETS)}")
    return with_timeout(PRESETS[name](str(model), cores or num_cores()))


def minute_plan(model: str | Path, *, share_weights: bool, cores: int | None = None) -> Plan:
    """Return the plan of a machine's card: layouts × numbers of users, as many as fit into 50 seconds.

    The first configuration is one process with all cores and one user. The two rounds give figures and no verdict.
    share_weights, cores: as in a PoolSpec and in `preset`.
    """
    usable = cores or num_cores()
    for num_layouts, users, num_prompt, num_generated in _MINUTE:
        plan = Plan(
            name="Your machine in 60 seconds",
            question="users",
            model=str(model),
            axes={"layout": layouts(usable, num_layouts), "users": users},
            pool={"parallel": max(users), "share_weights": share_weights},
            workload={
                "num_prompt": num_prompt,
                "num_generated": num_generated,
                "arrival": "users",
                "duration_s": SHORTEST_SAMPLE_S,
            },
            rounds=2,
        )
        if preview(plan).seconds <= MINUTE_S:
            break
    return with_timeout(plan)


def with_timeout(plan: Plan) -> Plan:
    """Return the plan with a sample timeout of at least five times the guess for its longest sample."""
    timeout_s = min(math.ceil(_TIMEOUT_SAMPLES * _longest_s(plan)), _LONGEST_TIMEOUT_S)
    return replace(plan, timeout_s=max(plan.timeout_s, timeout_s))


def layouts(cores: int, most: int) -> tuple[str, ...]:
    """Return at most `most` ways to divide `cores`: one process with all of them, then two, four, and so on."""
    return tuple(f"{1 << power}x{cores >> power}" for power in range(min(most, cores.bit_length())))


def _quick(model: str, cores: int) -> Plan:
    for num_layouts, sequences, num_prompt, num_generated in _QUICK:
        axes = {"layout": layouts(cores, num_layouts), "parallel": sequences}
        plan = _speed_plan("Two minutes", model, axes, num_prompt=num_prompt, num_generated=num_generated)
        if preview(plan).seconds <= QUICK_S:
            break
    return plan


def _speed(model: str, cores: int) -> Plan:
    axes = {"layout": layouts(cores, 6), "parallel": (1, 2, 4, 8, 16, 32)}
    return _speed_plan("How fast?", model, axes, num_prompt=128, num_generated=64)


def _standard(model: str, cores: int) -> Plan:
    axes = {"layout": layouts(cores, 4), "parallel": (1, 8, 32)}
    plan = _speed_plan("Standard", model, axes, num_prompt=128, num_generated=64)
    return replace(plan, pool={"share_weights": True}, measures_cold=True)


def _settings(model: str, cores: int) -> Plan:
    return settings_plan(model, cores=cores)


def _python(model: str, cores: int) -> Plan:
    return Plan(
        name="What does Python cost?",
        question="python",
        model=model,
        axes={"arm": ARMS},
        pool={"instances": 1, "threads": cores, "parallel": 1},
        workload={"num_prompt": 128, "num_generated": 64},
        rounds=12,
        anchor=ARMS.index("pool"),
    )


def _engines(model: str, cores: int) -> Plan:
    for users in _ENGINE_USERS:
        most = max(users)
        plan = Plan(
            name="Which engine is fastest here?",
            question="engines",
            model=model,
            axes={"users": users, "arm": engines_here(model)},
            pool={"instances": 1, "threads": cores, "parallel": most},
            workload={"num_prompt": 64, "num_generated": 64, "duration_s": _USERS_S[0]},
            rounds=FIRST_LOOK,
            compares_answers=True,
        )
        # Long enough for two of the slowest answers in sequence.
        answer_s = _longest_s(plan) - _USERS_S[0]
        duration_s = min(max(2.0 * math.ceil(answer_s), _USERS_S[0]), _USERS_S[1])
        plan = replace(plan, workload={**plan.workload, "duration_s": duration_s})
        if preview(plan).seconds <= ENGINES_S:
            break
    return plan


def engines_here(model: str) -> tuple[str, ...]:
    """Return the engines that can run a model on this machine, the pool first, external ones last.

    The bare loop is left out, as nobody would choose it, and engines on other machines, which are not "here".
    """
    feasibility = Feasibility()
    file = feasibility.file(model)
    is_folder = isinstance(file, ModelFile) and file.is_folder
    given = [EXTERNAL + one.name for one in engines.known_engines()]
    known = [name for name in given if not engines.is_remote(name)]
    if is_folder:
        return (engines.TRANSFORMERS, *known)
    folder = () if feasibility.torch_problem(model) else (engines.TRANSFORMERS,)
    servers = [name for name in MANAGED if not feasibility.missing(name)]
    return (engines.POOL, *servers, *folder, "create_completion", *_llama_bench(), *known)


def _llama_bench() -> tuple[str, ...]:
    try:
        return (LLAMA_BENCH,) if find_program(LLAMA_BENCH) else ()
    except ConfigError:
        return ()


def _users(model: str, cores: int) -> Plan:
    users = tuple(1 << power for power in range(MOST_USERS.bit_length()))
    workload = {"num_prompt": 128, "num_generated": 64, "arrival": "users", "duration_s": _USERS_S[0]}
    plan = Plan(
        name="How many users?",
        question="users",
        model=model,
        axes={"users": users},
        pool={"instances": 1, "threads": cores, "parallel": MOST_USERS, "share_weights": not has_amx()},
        workload=workload,
        rounds=FIRST_LOOK,
    )
    # Long enough for two of the slowest answers in sequence.
    answer_s = _longest_s(plan) - _USERS_S[0]
    duration_s = min(max(2.0 * math.ceil(answer_s), _USERS_S[0]), _USERS_S[1])
    return replace(plan, workload=workload | {"duration_s": duration_s})


def _embedding(model: str, cores: int) -> Plan:
    found = Feasibility().embedding_model(model)
    backends = tuple(usable(found)) if isinstance(found, EmbeddingModel) else ()
    ways = layouts(cores, 2)
    for chosen in (ways, ways[-1:]):
        axes: dict[str, tuple[Any, ...]] = {"layout": chosen, "backend": backends or (EXACT,)}
        plan = Plan(
            name="How fast are embeddings?",
            question="embedding",
            model=model,
            axes=axes,
            rounds=FIRST_LOOK,
        )
        if preview(plan).seconds <= EMBEDDING_S:
            break
    return plan


def _longest_s(plan: Plan) -> float:
    """Return the guessed seconds of the plan's longest sample; 0 when no configuration can run."""
    feasibility = Feasibility()
    able = [cell for cell in planned_cells(plan, feasibility) if not cell.refusal]
    guesses = (guess(cell, feasibility) for cell in able)
    return max((found.sample_s for found in guesses if found), default=0.0)


def _speed_plan(name: str, model: str, axes: dict[str, tuple[Any, ...]], **workload: int) -> Plan:
    return Plan(name=name, question="speed", model=model, axes=axes, workload=workload, rounds=FIRST_LOOK)


PRESETS: dict[str, Callable[[str, int], Plan]] = {
    "quick": _quick,
    "speed": _speed,
    "settings": _settings,
    "python": _python,
    "engines": _engines,
    "users": _users,
    "embedding": _embedding,
    "standard": _standard,
}
