"""First guesses of durations on a typical machine; measured seconds replace them once there are any."""

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from engine.bench.planning.embedding_guesses import guessed_embedding_load_s, guessed_embedding_s
from engine.bench.planning.feasibility import Feasibility, fit_together
from engine.bench.planning.plan import Cell, EmbeddingCell, Plan, PlannedCell
from engine.embedding.models import EmbeddingModel
from engine.machine.cores import num_cores
from engine.models.folder_specs import BYTES, folder_dtype, is_by_transformers
from engine.models.gguf import ModelFile

SHORTEST_SAMPLE_S = 1.0
"""Minimum seconds of a sample, which repeats its requests until then."""

# Memory and arithmetic rates of a processor with two memory channels and 256-bit vectors; worker start with imports.
_BYTES_PER_S = 30e9
_BYTES_PER_S_OF_CORE = 15e9
_OPERATIONS_PER_S_OF_CORE = 100e9
_STEP_S = 0.5e-3
_START_S = 0.8
_READ_PER_S = {"warm": 1e9, "cold": 0.25e9}


class Guess(NamedTuple):
    """Seconds of one sample, and of loading the workers with the file in memory and not in memory."""

    sample_s: float
    load_s: float
    cold_load_s: float


TURN_S = 0.2
"""Seconds that a sample takes in addition to its requests."""

NUM_WARM_UPS = 2
"""Samples that are not kept, after each load."""


class ExpectedTurn(NamedTuple):
    """Guessed seconds of a configuration's turns.

    sample_s: its sample; more_s: in addition in every turn; first_s: in addition in the first one, which loads the
    workers and warms them up.
    """

    sample_s: float
    more_s: float
    first_s: float


def expected_turns(plan: Plan, cells: Sequence[PlannedCell]) -> dict[int, ExpectedTurn]:
    """Return the guess for every configuration of a plan that can run, by number.

    The first configuration with the same workers loads them. Where not all workers fit in memory together, every turn
    loads and warms up.
    """
    feasibility = Feasibility()
    able = [cell for cell in cells if not cell.refusal]
    fits = fit_together(able, feasibility)
    expected: dict[int, ExpectedTurn] = {}
    loaded: set[Hashable] = set()
    for cell in able:
        found = guess(cell, feasibility)
        if found is None:
            continue
        is_loading = cell.worker_key not in loaded
        loaded.add(cell.worker_key)
        cold_s = found.cold_load_s if plan.measures_cold and is_loading else 0.0
        start_s = NUM_WARM_UPS * found.sample_s + (found.load_s if is_loading else 0.0)
        turn_s = (TURN_S, start_s + cold_s) if fits else (TURN_S + start_s, cold_s)
        expected[cell.number] = ExpectedTurn(found.sample_s, *turn_s)
    return expected


def guess(cell: PlannedCell, feasibility: Feasibility) -> Guess | None:
    """Return the guess for any configuration; None where its model cannot be read."""
    if isinstance(cell, EmbeddingCell):
        model = feasibility.embedding_model(cell.model)
        if not isinstance(model, EmbeddingModel):
            return None
        load_s = 0.0 if cell.spec.engine else guessed_embedding_load_s(cell.spec)
        return Guess(guessed_embedding_s(cell, model, num_cores(), SHORTEST_SAMPLE_S), load_s, load_s)
    file = feasibility.file(cell.model)
    if not isinstance(file, ModelFile):
        return None
    return Guess(guessed_sample_s(cell, file), guessed_load_s(cell, file), guessed_load_s(cell, file, "cold"))


def guessed_sample_s(cell: Cell, file: ModelFile) -> float:
    """Return the seconds of one sample: its requests once, and again until it lasts long enough.

    A decode step takes as long as reading the weights once for each process, or as the arithmetic of all its sequences,
    whichever is longer (the roofline); a prompt as long as its arithmetic. Users beyond the sequences take their turns.
    """
    workload, pool = cell.workload, cell.pool
    cores = min(pool.instances * (pool.threads or 1), num_cores())
    room = pool.instances * pool.parallel
    num_streams = min(workload.users, room) if workload.arrival == "users" else room
    token_s = 2 * file.num_parameters / (_OPERATIONS_PER_S_OF_CORE * cores)
    weights_s = pool.instances * _bytes_read(cell, file) / min(_BYTES_PER_S, _BYTES_PER_S_OF_CORE * cores)
    prompt_s = num_streams * workload.num_prompt * token_s
    decode_s = workload.num_generated * (max(weights_s, num_streams * token_s) + _STEP_S)
    before_s = num_streams * workload.depth * token_s
    once_s = max(prompt_s + decode_s, _STEP_S)
    if workload.arrival != "together":
        num_turns = math.ceil(workload.users / room) if workload.arrival == "users" else 1
        return before_s + workload.duration_s + num_turns * once_s
    return before_s + math.ceil(SHORTEST_SAMPLE_S / once_s) * once_s


def _bytes_read(cell: Cell, file: ModelFile) -> int:
    """Return the bytes of the weights in memory: transformers turns them into floats."""
    if not is_by_transformers(file, cell.pool):
        return file.weights_bytes
    return file.num_parameters * BYTES[folder_dtype(file, cell.pool)]


def guessed_load_s(cell: Cell, file: ModelFile, state: str = "warm") -> float:
    """Return the seconds until a configuration's workers are ready; `state` of the page cache: "warm" or "cold"."""
    copies = 1 if cell.pool.share_weights else cell.pool.instances
    start_s = _START_S * max(1, cell.pool.instances / num_cores())
    return start_s + copies * _bytes_read(cell, file) / _READ_PER_S[state]
