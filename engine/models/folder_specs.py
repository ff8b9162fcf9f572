"""Pool parameters of what transformers runs, a model folder or a GGUF file with a dtype: what PyTorch decides otherwise
than llama.cpp, and what only one of them has."""

from dataclasses import replace
from importlib.util import find_spec

from engine.errors import ConfigError
from engine.models.gguf import ModelFile
from engine.models.header import Value
from engine.specs import DType, PoolSpec

KV_TYPE: dict[DType, str] = {"float32": "f32", "bfloat16": "bf16"}
"""Types of keys and values by those of the weights, as a PoolSpec names them."""

BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2}
"""Bytes of a weight by its type."""

PACKAGES = ("torch", "transformers", "tokenizers")
"""Packages that run a folder, by their names for pip."""

GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Architectures of GGUF files that transformers runs here, every tensor of them."""

_ONLY_LLAMA_CPP = ("flash_attn", "n_gpu_layers", "load")


def is_by_transformers(file: ModelFile, spec: PoolSpec) -> bool:
    """Return whether transformers runs a model: a folder, or a GGUF file for which a dtype is given."""
    return file.is_folder or spec.dtype is not None


def gguf_problem(file: ModelFile) -> str:
    """Return why transformers cannot run a GGUF file here; empty where it can, as far as its header says."""
    if file.architecture not in GGUF_ARCHITECTURES:
        known = ", ".join(GGUF_ARCHITECTURES)
        name = file.architecture[:100]
        return f"has the architecture {name}, which is not among those of GGUF files that PyTorch runs: {known}"
    if file.parts > 1:
        return "is in several files, of which PyTorch reads only one: join them with llama-gguf-split --merge"
    if (
        file.whole("expert_count")
        or _has_scaled_positions(file)
        or file.sliding_window
        or len(set(file.n_head_kv)) != 1
    ):
        return (
            "has experts, scaled positions, a sliding window or layers of different sizes, which PyTorch does not run"
        )
    if file.whole("rope.dimension_count", file.head_k) != file.head_k or file.head_v != file.head_k:
        return "rotates a part of each head only, which PyTorch does not run"
    if not file.metadata.get(f"{file.architecture}.attention.causal", True):
        return "attends to later tokens too, which PyTorch does not run"
    return ""


def _has_scaled_positions(file: ModelFile) -> bool:
    """Return whether llama.cpp scales the positions of a GGUF file: linearly where the header names no type."""

    def value(key: str, default: Value) -> Value:
        return file.metadata.get(f"{file.architecture}.rope.{key}", default)

    kind, factor = value("scaling.type", "linear"), value("scaling.factor", value("scale_linear", 0.0))
    is_scaled = kind != "none" and (kind != "linear" or factor not in (0, 1))
    return is_scaled or value("scaling.attn_factor", 1.0) != 1


def missing_packages() -> str:
    """Return how to get the packages without which transformers runs nothing; empty where they are here."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    return f"to run it by transformers, `pip install {' '.join(missing)}`" if missing else ""


def folder_spec(file: ModelFile, spec: PoolSpec) -> PoolSpec:
    """Return the parameters that transformers runs a model with: dtype, type_k and type_v decided.

    Raises ConfigError for parameters that only llama.cpp has, for more tokens than the model was made for, for a GGUF
    file that it cannot run, and where packages are missing.
    """
    if missing := missing_packages():
        raise ConfigError(f"{file.path.name}: {missing}")
    if not file.is_folder and (problem := gguf_problem(file)):
        raise ConfigError(f"{file.path.name}: {problem}. Leave dtype out: llama.cpp runs it")
    default = PoolSpec()
    for name in _ONLY_LLAMA_CPP:
        if getattr(spec, name) != getattr(default, name):
            raise ConfigError(f"{name}: is a parameter of llama.cpp, which runs GGUF files; leave it out for PyTorch")
    dtype = folder_dtype(file, spec)
    kind = KV_TYPE[dtype]
    for name in ("type_k", "type_v"):
        if getattr(spec, name) not in (getattr(default, name), kind):
            raise ConfigError(
                f"{name} = {getattr(spec, name)!r}: keys and values of PyTorch have its dtype, {kind} here"
            )
    if spec.n_ctx > file.n_ctx_train:
        raise ConfigError(f"n_ctx = {spec.n_ctx:,}: this model was trained with at most {file.n_ctx_train:,} tokens")
    return replace(spec, dtype=dtype, type_k=kind, type_v=kind, share_weights=False)


def carried_over(file: ModelFile, spec: PoolSpec, other: ModelFile, dtype: DType | None = None) -> PoolSpec:
    """Return the parameters of a model for another one: the same, without those that only one of the engines has.

    dtype: given for the other one, which transformers runs then.

    Where llama.cpp follows transformers, its keys and values and its attention have the same precision.
    """
    if is_by_transformers(other, PoolSpec(dtype=dtype)):
        return replace(
            spec, type_k=PoolSpec.type_k, type_v=PoolSpec.type_v, flash_attn=None, n_gpu_layers=0, load="mmap",
            dtype=dtype or spec.dtype,
        )  # fmt: skip
    return replace(spec, dtype=None, flash_attn=False) if is_by_transformers(file, spec) else spec


def folder_dtype(file: ModelFile, spec: PoolSpec) -> DType:
    """Return the type of weights and arithmetic that transformers runs a model with."""
    return spec.dtype or ("bfloat16" if file.quantisation == "BF16" else "float32")
