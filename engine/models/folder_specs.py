"""Pool parameters of a model folder: what PyTorch decides otherwise than llama.cpp, and what only one of them has."""

from dataclasses import replace
from importlib.util import find_spec

from engine.errors import ConfigError
from engine.models.gguf import ModelFile
from engine.specs import DType, PoolSpec

KV_TYPE: dict[DType, str] = {"float32": "f32", "bfloat16": "bf16"}
"""Types of keys and values by those of the weights, as a PoolSpec names them."""

PACKAGES = ("torch", "transformers", "tokenizers")
"""Packages that run a folder, by their names for pip."""

_ONLY_LLAMA_CPP = ("flash_attn", "n_gpu_layers", "load")


def check_gguf(spec: PoolSpec) -> None:
    """Raise ConfigError for parameters that a GGUF file cannot have."""
    if spec.dtype is not None:
        raise ConfigError(
            f"dtype = {spec.dtype!r}: is for a folder of safetensors; the weights of a GGUF file have their own types"
        )


def folder_spec(file: ModelFile, spec: PoolSpec) -> PoolSpec:
    """Return the parameters that a model folder runs with: dtype, type_k and type_v decided.

    Raises ConfigError for parameters that only llama.cpp has, for more tokens than the model was made for, and where
    packages are missing.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{file.path.name}: is a folder of safetensors; to run it, `pip install {' '.join(missing)}`")
    default = PoolSpec()
    for name in _ONLY_LLAMA_CPP:
        if getattr(spec, name) != getattr(default, name):
            raise ConfigError(f"{name}: is a parameter of llama.cpp, which runs GGUF files; leave it out for a folder")
    dtype = folder_dtype(file, spec)
    kind = KV_TYPE[dtype]
    for name in ("type_k", "type_v"):
        if getattr(spec, name) not in (getattr(default, name), kind):
            raise ConfigError(
                f"{name} = {getattr(spec, name)!r}: keys and values of a folder have its dtype, {kind} here"
            )
    if spec.n_ctx > file.n_ctx_train:
        raise ConfigError(f"n_ctx = {spec.n_ctx:,}: this model was trained with at most {file.n_ctx_train:,} tokens")
    return replace(spec, dtype=dtype, type_k=kind, type_v=kind, share_weights=False)


def carried_over(file: ModelFile, spec: PoolSpec, other: ModelFile) -> PoolSpec:
    """Return the parameters of a model for another one: the same, without those that only one of the engines has.

    Where llama.cpp follows transformers, its keys and values and its attention have the same precision.
    """
    if other.is_folder:
        return replace(
            spec, type_k=PoolSpec.type_k, type_v=PoolSpec.type_v, flash_attn=None, n_gpu_layers=0, load="mmap"
        )
    return replace(spec, dtype=None, flash_attn=False) if file.is_folder else spec


def folder_dtype(file: ModelFile, spec: PoolSpec) -> DType:
    """Return the type of weights and arithmetic that a model folder runs with."""
    return spec.dtype or ("bfloat16" if file.quantisation == "BF16" else "float32")
