"""Feasibility check: whether a configuration can run, by its file, libraries, memory and engine."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from engine.backends.managed_programs import MANAGED, managed_missing
from engine.bench.planning import engines
from engine.bench.planning.embedding_guesses import guessed_bytes
from engine.bench.planning.plan import Cell, EmbeddingCell, PlannedCell, Workload
from engine.embedding.backends import available
from engine.embedding.models import EmbeddingModel, find_model
from engine.embedding.specs import EmbedSpec
from engine.errors import ConfigError, ModelError
from engine.machine.cores import num_cores
from engine.machine.memory import available_memory
from engine.models.folder_specs import folder_spec, gguf_problem, is_by_transformers, missing_packages
from engine.models.gguf import ModelFile
from engine.models.memory import MemoryEstimate, estimate
from engine.models.reading import read_model
from engine.specs import PoolSpec
from engine.units import counted

BYTES_PER_TOKEN = 2
"""Assumed bytes of text per token before a tokenizer has seen it; most take three or four."""

NO_FOLDER = "transformers needs a folder of safetensors of this network beside the GGUF file"
_FLOATS = ("f32", "f16", "bf16")
_LIBRARIES = ("libllama.so", "libllama.dylib")


class Need(NamedTuple):
    """Bytes that the workers of a configuration will use, and bytes available."""

    total: int
    available: int


class Feasibility:
    """Feasibility of the configurations of one plan; each file is read and each estimate made once.

    is_here: they run on this machine; else its memory and cores say nothing, and those of the nodes are checked there.
    """

    def __init__(self, *, is_here: bool = True) -> None:
        self._is_here = is_here
        self._files: dict[str, ModelFile | str] = {}
        self._embedding_models: dict[str, EmbeddingModel | str] = {}
        self._backends: dict[str, dict[str, str]] = {}
        self._estimates: dict[tuple[str, PoolSpec], MemoryEstimate | None] = {}
        self._embedding_needs: dict[EmbedSpec, Need | None] = {}
        self._folders: dict[str, str] = {}
        self._missing: dict[str, str] = {}

    def file(self, model: str) -> ModelFile | str:
        """Return the file's metadata, or why it cannot be read."""
        if model not in self._files:
            try:
                self._files[model] = read_model(model)
            except ModelError as error:
                self._files[model] = str(error)
        return self._files[model]

    def folder_of(self, model: str) -> str:
        """Return the folder that transformers runs for a model: its own, else one beside the file; "" without one."""
        if model not in self._folders:
            file = self.file(model)
            folder = None if isinstance(file, str) else file.path if file.is_folder else engines.folder_beside(file)
            self._folders[model] = str(folder or "")
        return self._folders[model]

    def torch_problem(self, model: str) -> str:
        """Return why transformers does not run a model, neither its folder nor the GGUF file; empty where it does."""
        if missing := missing_packages():
            return missing
        file = self.file(model)
        if isinstance(file, str) or self.folder_of(model):
            return file if isinstance(file, str) else ""
        memory = self.memory(model, PoolSpec(dtype="float32"))
        unfit = f"needs in float32 {memory.arithmetic}" if memory is not None and not memory.fits else ""
        return _transformers_refusal(gguf_problem(file) or unfit)

    def missing(self, engine: str) -> str:
        """Return what is missing to use a server on this machine, and how to get it; empty where nothing is."""
        if engine not in self._missing:
            self._missing[engine] = _missing(engine)
        return self._missing[engine]

    def memory(self, model: str, spec: PoolSpec) -> MemoryEstimate | None:
        """Return the memory estimate of a pool of `spec`; None where the file cannot be read, or runs elsewhere."""
        if not self._is_here:
            return None
        key = model, spec
        if key not in self._estimates:
            file = self.file(model)
            self._estimates[key] = estimate(file, spec) if isinstance(file, ModelFile) else None
        return self._estimates[key]

    def embedding_model(self, model: str) -> EmbeddingModel | str:
        """Return the embedding model of that name or folder, or why there is none."""
        if model not in self._embedding_models:
            try:
                self._embedding_models[model] = find_model(model)
            except ModelError as error:
                self._embedding_models[model] = str(error)
        return self._embedding_models[model]

    def backends(self, model: EmbeddingModel) -> dict[str, str]:
        """Return by name why a backend cannot compute that model on this machine; empty where it can."""
        path = str(model.path)
        if path not in self._backends:
            self._backends[path] = dict(available(model))
        return self._backends[path]

    def need(self, cell: PlannedCell) -> Need | None:
        """Return the memory need of any configuration's workers; None where it is not known."""
        if isinstance(cell, EmbeddingCell):
            return None if cell.spec.engine else self.need_of_embedding(cell.spec)
        if engines.is_external(cell.arm):
            return None
        memory = self.memory(cell.model, cell.pool)
        return None if memory is None else Need(memory.total, memory.available)

    def need_of_embedding(self, spec: EmbedSpec) -> Need | None:
        """Return the approximate memory need of embedding workers; None where their model cannot be read."""
        if spec not in self._embedding_needs:
            model = self.embedding_model(spec.model)
            self._embedding_needs[spec] = (
                Need(guessed_bytes(spec, model), available_memory()) if isinstance(model, EmbeddingModel) else None
            )
        return self._embedding_needs[spec]

    def fits(self, model: str, spec: PoolSpec) -> bool:
        """Return True unless the pool is known to need more memory than there is."""
        memory = self.memory(model, spec)
        return memory is None or memory.fits

    def refusal(self, cell: Cell) -> str:
        """Return the first reason why `cell` cannot run; empty where it can."""
        return next(self._refusals(cell), "")

    def _refusals(self, cell: Cell) -> Iterator[str]:
        file = self.file(cell.model)
        if isinstance(file, str):
            yield file
        else:
            yield from _refusals_of_model(file, cell)
        if cell.build and not any(Path(cell.build, name).exists() for name in _LIBRARIES):
            yield f"{cell.build}: does not contain {_LIBRARIES[0]}; name the folder of a llama.cpp build that does"
        if engines.is_server(cell.arm):
            yield from self._refusals_of_server(cell)
        elif cell.arm in engines.SINGLE:
            yield from _refusals_of_single(cell)
        if cell.pool.flash_attn is False and cell.pool.type_v not in _FLOATS:
            yield f"values of type {cell.pool.type_v} need flash attention, which is off in this configuration"
        if engines.is_external(cell.arm):
            return
        if (needed := num_needed(cell.workload)) > cell.pool.n_ctx:
            yield f"a request takes {needed:,} tokens of context, but n_ctx is {cell.pool.n_ctx:,}"
        memory = self.memory(cell.model, cell.pool)
        if memory is not None and not memory.fits:
            yield f"needs more memory than is available: {memory.arithmetic}"

    def _refusals_of_server(self, cell: Cell) -> Iterator[str]:
        """Yield why a server cannot be measured like this, or is not here."""
        name, asked = engines.label_of(cell.arm), cell.workload
        if missing := self.missing(cell.arm):
            yield missing
        if cell.pool.instances > 1 or cell.build:
            yield f"{name} is one process with libraries of its own: use a layout of one process, and remove build"
        if cell.arm == engines.LLAMA_CPP_SERVER and cell.pool.parallel > 1:
            yield f"{name} answers one request at a time: remove parallel, or set it to 1"
        if cell.arm == engines.LLAMA_CPP_SERVER and cell.pool.share_weights:
            yield f"{name} always repacks the weights: remove share_weights"
        if asked.depth and asked.asked == "tokens":
            yield f"{name} keeps nothing of earlier requests here, so that none is favoured: remove depth"
        if not asked.num_generated:
            yield f"{name} answers with at least one token: set num_generated"
        if engines.is_remote(cell.arm):
            yield from _refusals_elsewhere(cell)

    def notes(self, cell: Cell) -> tuple[str, ...]:
        """Return the unusual but allowed properties of `cell`."""
        if engines.is_external(cell.arm):
            return ("not started here: its threads, context and memory are not known",)
        found = [*crowded(cell.pool.instances * (cell.pool.threads or 1))] if self._is_here else []
        if cell.arm == engines.TRANSFORMERS:
            kind = "file" if cell.pool.dtype and Path(cell.model).is_file() else "folder"
            found.append(f"PyTorch runs the {kind} {Path(cell.model).name}")
        if cell.arm == "llama-bench" and cell.workload.arrival == "users":
            found.append("times prompt and tokens apart; their seconds are added")
        file = self.file(cell.model)
        if isinstance(file, ModelFile) and num_needed(cell.workload) > file.n_ctx_train:
            found.append(f"longer than the model's training context of {file.n_ctx_train:,} tokens")
        room = cell.pool.instances * cell.pool.parallel
        if cell.workload.arrival == "users" and cell.workload.users > room:
            found.append(f"{cell.workload.users:,} users share {counted(room, 'sequence')}: the others wait")
        return tuple(found)


def _refusals_of_model(file: ModelFile, cell: Cell) -> Iterator[str]:
    """Yield why the model cannot run with these parameters."""
    if engines.is_external(cell.arm):
        return
    if cell.arm == engines.TRANSFORMERS and not file.is_folder and (problem := gguf_problem(file)):
        yield _transformers_refusal(problem)
        return
    if cell.pool.dtype and not file.is_folder and cell.arm not in (engines.POOL, engines.TRANSFORMERS):
        yield f"dtype: {engines.label_of(cell.arm)} runs a GGUF file with the types of its weights: remove dtype"
    if file.is_folder and (cell.arm not in (engines.POOL, engines.TRANSFORMERS) or cell.build):
        yield "llama.cpp runs GGUF files; a folder of safetensors runs in the pool only, with transformers"
    try:
        if is_by_transformers(file, cell.pool):
            folder_spec(file, cell.pool)
    except ConfigError as error:
        yield str(error)


def _transformers_refusal(problem: str) -> str:
    """Return why transformers runs neither a folder nor the GGUF file, which `problem` says, or nothing."""
    return problem and f"{NO_FOLDER}: the file itself {problem}"


def crowded(num_threads: int) -> tuple[str, ...]:
    """Return a note where a configuration has more threads than cores."""
    if num_threads <= num_cores():
        return ()
    return (f"{num_threads:,} threads, but this process may use {num_cores():,} cores",)


def num_needed(workload: Workload) -> int:
    """Return the tokens of context that the longest request takes; texts are estimated at BYTES_PER_TOKEN."""
    if workload.asked == "prompts":
        longest = max(len(prompt.encode()) for prompt in workload.prompts)
        return longest // BYTES_PER_TOKEN + 1 + workload.num_generated
    return workload.depth + workload.num_prompt + workload.num_generated


def fit_together(cells: Iterable[PlannedCell], feasibility: Feasibility) -> bool:
    """Return True where the workers of all configurations can stay loaded at once; shared weights count for each."""
    by_worker = {cell.worker_key: feasibility.need(cell) for cell in cells}
    needed = [need for need in by_worker.values() if need is not None]
    return sum(need.total for need in needed) <= min((need.available for need in needed), default=0)


def _refusals_elsewhere(cell: Cell) -> Iterator[str]:
    """Yield why a load is not sent to another machine."""
    name = engines.label_of(cell.arm)
    if cell.workload.arrival == "poisson":
        yield f"{name} is on another machine, to which no requests are sent at random times: use users"
    if (num := num_at_once(cell)) > engines.MOST_USERS_ELSEWHERE:
        yield f"{name} is on another machine, to which at most {engines.MOST_USERS_ELSEWHERE} users send, not {num:,}"


def num_at_once(cell: Cell) -> int:
    """Return how many requests a configuration sends at once: those of its users, else one for each sequence."""
    return cell.workload.users if cell.workload.arrival == "users" else cell.pool.instances * cell.pool.parallel


def _missing(engine: str) -> str:
    """Return what is missing to use a server on this machine, and how to get it."""
    try:
        for kind in MANAGED:
            if kind == engine:
                return managed_missing(kind)
        engines.known_engine(engine)
    except ConfigError as error:
        return str(error)
    return ""


def _refusals_of_single(cell: Cell) -> Iterator[str]:
    """Yield the requirements of `cell` that a program with one request at a time does not meet."""
    asked = cell.workload
    is_single = asked.arrival == "together" or (asked.arrival, asked.users) == ("users", 1)
    if cell.pool.instances > 1 or cell.pool.parallel > 1 or not is_single:
        yield f"{cell.arm} answers one request at a time: use one process, parallel = 1 and no more than one user"
    if cell.arm == "create_completion" and cell.pool.share_weights:
        yield "create_completion always repacks the weights: remove share_weights"
    if cell.arm != "llama-bench":
        return
    if cell.workload.asked == "prompts":
        yield "llama-bench uses random tokens, not texts"
    if cell.pool.threads_batch != cell.pool.threads:
        yield "llama-bench has one thread count for prefill and decode: remove threads_batch"
    if cell.build:
        yield "llama-bench has its own libraries: remove build"
