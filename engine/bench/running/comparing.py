"""Comparison after a run: how far each configuration's answers or vectors are from a reference, stored as its facts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from engine.bench.analysis.divergence import divergence, divergence_of_texts
from engine.bench.measurement.answers import (
    NUM_CANDIDATES,
    Answers,
    answers,
    greedy_completions,
    until_they_part,
)
from engine.bench.measurement.embedding import EmbeddingTarget
from engine.bench.measurement.server_target import ServerTarget
from engine.bench.measurement.target import EngineTarget, Target
from engine.bench.planning import engines
from engine.bench.planning.embedding_cells import EXACT
from engine.bench.planning.plan import Cell, EmbeddingCell, PlannedCell
from engine.bench.planning.prompts import NUM_COMPARED, sample_prompts
from engine.embedding.agreement import agreement
from engine.embedding.backends import usable
from engine.embedding.models import find_model
from engine.embedding.pool import EmbeddingPool
from engine.embedding.sentences import shipped_sentences
from engine.embedding.specs import EmbedSpec
from engine.errors import EngineError
from engine.runs import CellRecord
from engine.step_parts import Floats
from engine.vocabulary import Vocabulary

Measured = Sequence[tuple[PlannedCell, CellRecord]]
"""Configurations that were measured to the end."""

Find = Callable[[PlannedCell], Target]


def compared_answers(measured: Measured, target_of: Find, timeout_s: float) -> Iterator[CellRecord]:
    """Have the configurations answer the same prompts, and record how far their answers are from a reference.

    The reference is the first of them that is no server. A server is compared by its tokens where it runs the same file
    and reports them, else by its texts. Of configurations that compute alike only one runs, and its figures apply to
    the others.
    """
    prompts = sample_prompts()[:NUM_COMPARED]
    reference = _Reference(prompts, timeout_s * NUM_COMPARED)
    known: dict[object, dict[str, float]] = {}
    able = [(cell, record) for cell, record in measured if isinstance(cell, Cell) and cell.arm not in engines.SINGLE]
    for cell, record in sorted(able, key=lambda one: engines.is_server(one[0].arm)):
        computation = _computation(cell)
        try:
            if computation not in known:
                known[computation] = reference.divergence(target_of(cell))
        except EngineError as error:
            yield _noted(record, f"its answers could not be compared: {error}")
            continue
        yield replace(record, facts={**record.facts, **known[computation]})


class _Reference:
    """Answers of the first engine whose tokens are known, with which those of the others are compared."""

    def __init__(self, prompts: Sequence[str], timeout_s: float) -> None:
        self._prompts, self._timeout_s = prompts, timeout_s
        self._first: tuple[Answers, Vocabulary] | None = None

    def divergence(self, target: Target) -> dict[str, float]:
        """Return the facts of a target; none for a server before there is a reference. Raises EngineError."""
        if isinstance(target, ServerTarget) and self._first is not None:
            return self._of_server(target, *self._first)
        if not isinstance(target, EngineTarget):
            return {}
        first = self._first[0] if self._first else None
        found = answers(target.engine, first or self._prompts, timeout_s=self._timeout_s)
        self._first = self._first or (found, target.engine.vocabulary)
        return divergence(self._first[0], found).facts

    def _of_server(self, target: ServerTarget, reference: Answers, vocabulary: Vocabulary) -> dict[str, float]:
        """Compare a server by ids and distributions where it runs the same file and reports them, else by texts."""
        if target.has_ids_of_file and reference.num_vocab == len(target.engine.vocabulary):
            done = greedy_completions(target.submit, reference.prompts, top_k=NUM_CANDIDATES, timeout_s=self._timeout_s)
            return divergence(*until_they_part(reference, done)).facts
        done = greedy_completions(target.submit, self._prompts, timeout_s=self._timeout_s)
        return divergence_of_texts(reference, vocabulary, [one.text for one in done])


def _noted(record: CellRecord, failure: str) -> CellRecord:
    """Return the record with a failure of the comparison after what was remarked before."""
    return replace(record, reason="; ".join(filter(None, (record.reason, failure))))


def _computation(cell: Cell) -> object:
    """Return what determines the answers to single requests: not the number of processes and sequences."""
    return cell.arm, cell.model, cell.build, replace(cell.pool, instances=1, parallel=1, pin=False, load="mmap")


def compared_vectors(measured: Measured, target_of: Find, timeout_s: float) -> Iterator[CellRecord]:
    """Have every configuration embed the bundled sentences, and record how far its vectors are from those of float32.

    A model that cannot be computed in float32 on this machine, such as a GGUF file, is compared with the first one that
    can.
    """
    cells = [(cell, record) for cell, record in measured if isinstance(cell, EmbeddingCell)]
    exact = _Exact([cell for cell, _record in cells], target_of, timeout_s)
    for cell, record in cells:
        try:
            reference = exact.vectors(cell.model)
            if reference is None:
                continue
            found = agreement(_target(target_of(cell)).vectors(shipped_sentences(), timeout_s), reference)
        except EngineError as error:
            yield _noted(record, f"its vectors could not be compared: {error}")
            continue
        yield replace(record, facts={**record.facts, **found._asdict()})


class _Exact:
    """Float32 vectors of the bundled sentences, computed once per model."""

    def __init__(self, cells: Sequence[EmbeddingCell], target_of: Find, timeout_s: float) -> None:
        self._cells, self._target_of, self._timeout_s = cells, target_of, timeout_s
        self._known: dict[str, Floats] = {}

    def vectors(self, model: str) -> Floats | None:
        """Return those of this model, else of the first that supports float32; None without one. Raises EngineError."""
        able = (each for each in (model, *(cell.model for cell in self._cells)) if EXACT in usable(find_model(each)))
        chosen = next(able, None)
        if chosen is None:
            return None
        if chosen not in self._known:
            self._known[chosen] = self._compute(chosen)
        return self._known[chosen]

    def _compute(self, model: str) -> Floats:
        """Compute on a configuration that uses float32 anyway, else on a worker opened for it."""
        for cell in self._cells:
            if cell.model == model and cell.spec.backend == EXACT:
                return _target(self._target_of(cell)).vectors(shipped_sentences(), self._timeout_s)
        with EmbeddingPool(EmbedSpec(model=model, backend=EXACT)) as pool:
            return pool.compute(shipped_sentences(), timeout=self._timeout_s).vectors


def _target(target: Target) -> EmbeddingTarget:
    assert isinstance(target, EmbeddingTarget)
    return target
