"""Places of a pool's workers: what starts the worker of each number, here as child processes of this machine."""

from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from engine.errors import ConfigError, EngineError, ModelError
from engine.files import check_utf8, named_path
from engine.machine.cores import cores_for, threads_for
from engine.models.folder_specs import is_by_transformers
from engine.models.gguf import ModelFile
from engine.models.mistaken import check_is_model
from engine.pool import messages as m
from engine.pool.worker_link import LLAMA_CPP, TRANSFORMERS, WorkerLink, start_child
from engine.specs import PoolSpec


class Started(NamedTuple):
    """A started worker: what it must load, the link to it, and the name of its node, empty for this machine."""

    order: m.LoadModel
    link: WorkerLink
    node: str = ""


class NotNow(Exception):
    """A worker has no place at present; error: what to raise where it is not waited for."""

    def __init__(self, error: EngineError) -> None:
        super().__init__(str(error))
        self.error = error


class Places(Protocol):
    """Where a pool's workers run.

    threads: of each worker, at most. patience_s: how long a worker is waited for whose place is not there, while no
    other runs; 0 where its start is tried once.
    """

    @property
    def threads(self) -> int: ...

    @property
    def patience_s(self) -> float: ...

    def start(self, index: int, *, is_again: bool = False) -> Started:
        """Start the program of worker `index`, or of its replacement; is_again: the attempt before this one failed.

        Raises NotNow where no place is there, EngineError.
        """

    def wait(self, longest_s: float) -> None:
        """Wait until places come or go, at most `longest_s` seconds."""

    def give_up(self, index: int) -> None:
        """Release the place of a worker that is not replaced."""

    def close(self) -> None:
        """Give all places up, after the workers have ended. Safe to call twice."""


class Here:
    """This machine. order: what each worker loads; build, program: as start_child takes them."""

    def __init__(self, order: m.LoadModel, build: str, program: str) -> None:
        self._order, self._build, self._program = order, build, program
        self.threads, self.patience_s = order.threads, 0.0

    def start(self, index: int, *, is_again: bool = False) -> Started:
        """Start a child process, in one attempt."""
        order = self._order
        cpus = cores_for(index, order.threads) if order.spec.pin else []
        return Started(msgspec.structs.replace(order, cpus=cpus), start_child(self._build, self._program))

    def wait(self, longest_s: float) -> None:
        """Do nothing: this machine does not come and go."""

    def give_up(self, index: int) -> None:
        """Do nothing: a child may run anywhere on this machine."""

    def close(self) -> None:
        """Do nothing: children end with their connection."""


def here(file: ModelFile, spec: PoolSpec, build: str, prefill_share: int) -> Here:
    """Return this machine as the place of a pool's workers."""
    threads = spec.threads or threads_for(spec.instances)
    return Here(order_for(str(file.path), spec, threads, prefill_share), build, program_of(file, spec))


def program_of(file: ModelFile, spec: PoolSpec) -> str:
    """Return the worker program that runs a model."""
    return TRANSFORMERS if is_by_transformers(file, spec) else LLAMA_CPP


def order_for(model: str, spec: PoolSpec, threads: int, prefill_share: int) -> m.LoadModel:
    """Return the order to load a model with this number of threads, without cores to pin to."""
    threads_batch = spec.threads_batch or threads
    return m.LoadModel(m.PROTOCOL, model, spec, threads, threads_batch, [], prefill_share)


def model_path(model: str | Path) -> Path:
    """Return the path of a model. Raises ConfigError for what is no path, ModelError for one that cannot be a model."""
    if not isinstance(model, str | Path):
        raise ConfigError(f"model = {model!r}: must be the path of a GGUF file or a model folder")
    path = named_path(model)
    check_is_model(model)
    check_utf8(path, ModelError)
    return path
