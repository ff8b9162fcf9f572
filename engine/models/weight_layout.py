"""Default layout of a model's weights: the one that this machine computes faster, measured once for each quantisation.

Repacked weights are faster for one stream on most processors, prompts and many streams often with the weights as in the
file; which, differs between processors and compilers (docs/decisions/0010).
"""

import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from engine.errors import EngineError
from engine.files import decoded_msgpack, read_regular, scratch_folder, write_private
from engine.llama.weight_layouts import Job, Timings, prefers_file
from engine.machine.cores import cpu_name, num_cores, threads_for
from engine.machine.fingerprint import fingerprint_hash
from engine.models.folder_specs import folder_spec, is_by_transformers
from engine.models.gguf import ModelFile
from engine.models.memory import copied_weights
from engine.models.repacking import llama_cpp_libraries
from engine.models.shapes import Shape
from engine.models.synthetic import QUANTISATIONS, write_synthetic
from engine.process.child import huge_pages
from engine.process.program import Program
from engine.settings import Settings
from engine.specs import PoolSpec

LEAST_COPIED_BYTES = 200 << 20
"""Models with less to repack are fast in either layout, and are repacked without a measurement."""

SHAPE = Shape(
    architecture="llama", n_vocab=1024, n_ctx_train=2048, n_embd=2048, n_layer=4, n_head=32, n_head_kv=4, n_ff=5632,
)  # fmt: skip
"""Four layers of a 1.1 B model: more than most caches hold, and measured within seconds."""

_DEADLINE_S = 30.0
_one_measurement = threading.Lock()

OnOpening = Callable[[Callable[[], None]], object]


def with_layout(spec: PoolSpec, file: ModelFile, on_opening: OnOpening = lambda _abort: None) -> PoolSpec:
    """Return `spec` with share_weights decided, and for transformers what `folder_spec` decides; measures for some
    seconds where that was not done on this machine yet.

    Repacked weights are the choice where it does not matter or cannot be measured: little to repack, layers on a GPU, a
    quantisation that the writer of synthetic models lacks, a disturbed machine. `on_opening` is called before a
    measurement with a function that ends it from any thread. Raises ConfigError for parameters that the file cannot
    have.
    """
    if is_by_transformers(file, spec):
        return folder_spec(file, spec)
    if spec.share_weights is not None:
        return spec
    is_open = spec.n_gpu_layers == 0 and copied_weights(file) >= LEAST_COPIED_BYTES
    timings = _timings(file.quantisation, on_opening) if is_open and file.quantisation in QUANTISATIONS else None
    return replace(spec, share_weights=timings is not None and prefers_file(timings, spec.parallel))


def _timings(quantisation: str, on_opening: OnOpening) -> Timings | None:
    """Return the kept timings of a quantisation, else measured ones, which are kept; None where that fails."""
    with _one_measurement:
        kept = _kept()
        if quantisation not in kept:
            with suppress(EngineError, OSError):  # no memory, no room
                found = _measured(quantisation, on_opening)
                if found is not None:
                    kept[quantisation] = found
                    _keep(kept)
        return kept.get(quantisation)


def _measured(quantisation: str, on_opening: OnOpening) -> Timings | None:
    program = Program(
        "engine.llama.weight_layouts_program",
        does="times weight layouts",
        answers=Timings | None,
        environment=huge_pages(),
    )
    try:
        on_opening(program.stop)
        with scratch_folder(Path(tempfile.gettempdir()), "logitbench-layouts") as folder:
            path = folder / "layers.gguf"
            write_synthetic(SHAPE, path, quantisation)
            found: Timings | None = program.ask(Job(str(path), threads_for(1)), _DEADLINE_S)
    finally:
        program.close()
    return found


def _kept() -> dict[str, Timings]:
    """Return the timings of this machine by quantisation; empty where none can be read."""
    try:
        return decoded_msgpack(read_regular(_store()), dict[str, Timings])
    except (OSError, ValueError):
        return {}


def _keep(timings: dict[str, Timings]) -> None:
    with suppress(OSError):
        write_private(_store(), msgspec.msgpack.encode(timings))


def _store() -> Path:
    return Settings.from_environment().home / "models" / f"layouts-{_machine_hash()}.msgpack"


def _machine_hash() -> str:
    """Return a hash that is the same for the same processor, number of cores and build of llama.cpp."""
    library: tuple[int, ...] = ()
    with suppress(OSError):
        status = ((llama_cpp_libraries() or Path()) / "libggml-cpu.so").stat()
        library = status.st_size, status.st_mtime_ns
    return fingerprint_hash({"cpu": cpu_name(), "cores": num_cores(), "library": library})
