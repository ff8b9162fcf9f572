"""Servers that the workbench starts itself: what each needs on this machine, and how it is called for a PoolSpec."""

from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

import msgspec

from engine.errors import ConfigError
from engine.machine.cores import cores_for, threads_for
from engine.models.gguf import ModelFile
from engine.models.llama_programs import find_program, libraries_for
from engine.models.memory import MemoryEstimate, check_fits, estimate
from engine.models.weight_layout import OnOpening, with_layout
from engine.process.child import Child, huge_pages
from engine.specs import PoolSpec

ManagedKind = Literal["llama-server", "llama_cpp.server"]
MANAGED: tuple[ManagedKind, ...] = get_args(ManagedKind)
_MODULES = ("fastapi", "sse_starlette", "starlette_context", "pydantic_settings", "uvicorn", "yaml")
"""What llama_cpp.server imports beside llama-cpp-python itself."""
_ALL_LAYERS = 999
_FLOAT = 4


@dataclass(frozen=True)
class ManagedServer:
    """Server that the workbench starts: its kind, the model file, the parameters that it is started with."""

    kind: ManagedKind
    path: Path
    spec: PoolSpec

    @property
    def name(self) -> str:
        """Name of the engine, as trials record it."""
        return self.kind


def managed_missing(kind: ManagedKind) -> str:
    """Return what a kind of server lacks on this machine and how to get it, as a sentence; "" where it can be started.

    Raises ConfigError for a program named in the settings that does not exist.
    """
    if kind == "llama-server":
        if find_program(kind) is not None:
            return ""
        return (
            "llama-server was not found: run `make peers` in the checkout, or install llama.cpp and name its "
            "llama-server in LOGITBENCH_LLAMA_SERVER."
        )
    if all(find_spec(name) for name in _MODULES):
        return ""
    package = f"llama-cpp-python[server]=={version('llama-cpp-python')}"
    return f"llama_cpp.server lacks packages that it needs: run `pip install '{package}'`."


def default_parallel(kind: ManagedKind) -> int:
    """Return the requests that a kind of server answers at once unless told otherwise; llama_cpp.server only one."""
    return 1 if kind == "llama_cpp.server" else PoolSpec.parallel


def managed_spec(kind: ManagedKind, file: ModelFile, spec: PoolSpec, on_opening: OnOpening) -> PoolSpec:
    """Return the parameters that a server is started with: threads and share_weights decided.

    Raises ConfigError for a parameter that the server does not have, MemoryRefused for a model that does not fit.
    """
    if file.is_folder:
        raise ConfigError(f"{file.path.name}: is a folder of safetensors; {kind} runs GGUF files")
    if spec.dtype is not None:
        raise ConfigError(
            f"dtype = {spec.dtype!r}: {kind} runs a GGUF file with the types of its weights; leave it out"
        )
    if spec.instances != 1:
        raise ConfigError(f"instances = {spec.instances}: {kind} is one process; set parallel instead")
    if kind == "llama_cpp.server":
        if spec.parallel != 1:
            raise ConfigError(f"parallel = {spec.parallel}: llama_cpp.server answers one request at a time; set 1")
        if spec.share_weights:
            raise ConfigError("share_weights = True: llama_cpp.server always repacks weights; leave it out")
        spec = replace(spec, share_weights=False)
    threads = spec.threads or threads_for(1)
    decided = replace(with_layout(spec, file, on_opening), threads=threads, threads_batch=spec.threads_batch or threads)
    check_fits(file, decided, managed_estimate(kind, file, decided))
    return decided


def managed_estimate(kind: ManagedKind, file: ModelFile, spec: PoolSpec) -> MemoryEstimate:
    """Estimate the memory of a server: as of a pool, and for llama_cpp.server the logits that it keeps of each token.

    It always has a float for each token of the context and of the vocabulary (its logits_all).
    """
    needed = estimate(file, spec)
    if kind == "llama_cpp.server":
        needed = replace(needed, output=needed.output + spec.padded_n_ctx * file.n_vocab * _FLOAT)
    return needed


def start(kind: ManagedKind, file: ModelFile, spec: PoolSpec, key: str) -> Child:
    """Start a server on a free port of 127.0.0.1. key: for its API, given in the environment, which other users cannot
    read. Raises ConfigError where the program is missing, ProgramFailed where no process can be started."""
    missing = managed_missing(kind)
    if missing:
        raise ConfigError(missing)
    assert spec.threads is not None
    cores = ",".join(map(str, cores_for(0, spec.threads))) if spec.pin else ""
    model = str(file.path.resolve())
    if kind == "llama_cpp.server":
        spec_json = msgspec.json.encode(spec.to_dict()).decode()
        environment = huge_pages() | {"API_KEY": key}
        return Child("engine.llama.python_server", cores, model, spec_json, environment=environment)
    program = find_program(kind)
    assert program is not None
    environment = huge_pages() | libraries_for(program) | {"LLAMA_API_KEY": key}
    words = (cores, str(program), "--model", model, *flags(spec))
    return Child("engine.backends.server_program", *words, environment=environment)


def flags(spec: PoolSpec) -> list[str]:
    """Return a PoolSpec as flags of llama-server, and those of a pool's other parameters where its defaults differ."""
    given: dict[str, object] = {
        "--host": "127.0.0.1",
        "--port": 0,
        "--ctx-size": spec.padded_n_ctx * spec.parallel,
        "--parallel": spec.parallel,
        "--threads": spec.threads,
        "--threads-batch": spec.threads_batch,
        "--batch-size": spec.resolved_n_batch,
        "--ubatch-size": min(spec.resolved_n_ubatch, spec.resolved_n_batch),
        "--flash-attn": {None: "auto", True: "on", False: "off"}[spec.flash_attn],
        "--cache-type-k": spec.type_k,
        "--cache-type-v": spec.type_v,
        "--n-gpu-layers": spec.n_gpu_layers if spec.n_gpu_layers >= 0 else _ALL_LAYERS,
        "--load-mode": "mmap+mlock" if spec.load == "mlock" else spec.load,
        "--fit": "off",  # it would change the parameters to what fits
        "--cache-ram": 0,  # copies of prompts, up to 8 GiB beside the KV cache
    }
    switches = [
        "--no-kv-unified",
        "--swa-full",
        "--no-repack" if spec.share_weights else "--repack",
        "--no-context-shift",
        "--offline",
        "--no-webui",
        "--no-log-prefix",
    ]
    return [*(str(word) for pair in given.items() for word in pair), *switches]
