"""Axes of plans, for generation and for embedding."""

import difflib
from dataclasses import replace
from typing import Any

from engine.bench.planning.axis import Axis, values_of
from engine.bench.planning.engines import ENGINES
from engine.bench.planning.plan import Question
from engine.embedding.backends import KINDS
from engine.errors import ConfigError, quoted
from engine.specs import DTYPES, KV_TYPES

AXES = (
    Axis(
        "layout",
        "Layout",
        "{}",
        "processes with the model × threads of each; 2xauto: allowed cores / 2 for each",
        where="cell",
        kind="layout",
    ),
    Axis("parallel", "Sequences", "{} sequence{s}", "sequences decoded together in each process"),
    Axis(
        "threads_batch",
        "Threads for prefill",
        "{} thread{s} for prefill",
        "threads that compute prompts; auto: as many as for generation",
        unset="auto",
    ),
    Axis(
        "pin",
        "Pinning",
        "pinning {}",
        "each process is pinned to its own cores",
        kind="switch",
        choices=("not pinned", "pinned"),
    ),
    Axis(
        "share_weights",
        "Shared weights",
        "shared weights {}",
        "on: one copy for all processes; off: each repacks its own, which is faster for a single stream",
        kind="switch",
        choices=("repacked weights", "shared weights"),
    ),
    Axis(
        "load",
        "Load mode",
        "load {}",
        "how the file is loaded into memory",
        kind="choice",
        choices=("mmap", "mlock", "none"),
    ),
    Axis("n_ctx", "Context", "context {}", "tokens of context per sequence", "tokens"),
    Axis("n_batch", "Logical batch", "n_batch {}", "maximum tokens per llama_decode call", "tokens", unset="auto"),
    Axis(
        "n_ubatch",
        "Physical batch",
        "n_ubatch {}",
        "maximum tokens computed at once; at most n_batch",
        "tokens",
        unset="auto",
    ),
    Axis(
        "flash_attn",
        "Flash attention",
        "flash attention {}",
        "attention without storing the full matrix; auto: llama.cpp decides",
        kind="switch",
        choices=("flash attention off", "flash attention on"),
        unset="auto",
        changes_answers=True,
    ),
    Axis(
        "type_k",
        "Key type",
        "keys {}",
        "type of the keys in the KV cache",
        kind="choice",
        choices=KV_TYPES,
        changes_answers=True,
    ),
    Axis(
        "type_v",
        "Value type",
        "values {}",
        "type of the values in the KV cache; quantised types need flash attention",
        kind="choice",
        choices=KV_TYPES,
        changes_answers=True,
    ),
    Axis(
        "n_gpu_layers", "Layers on the GPU", "{} layer{s} on the GPU", "layers offloaded to the GPU; -1: all", "layers"
    ),
    Axis(
        "dtype",
        "Weight type",
        "weights {}",
        "type of weights and arithmetic in transformers, which then runs a GGUF file too; auto: a folder's own, and "
        "llama.cpp for a GGUF file",
        kind="choice",
        choices=DTYPES,
        unset="auto",
        changes_answers=True,
    ),
    Axis("num_prompt", "Prompt", "prompt {}", "random tokens per prompt", "tokens", "workload"),
    Axis("num_generated", "Generated", "{} generated", "tokens generated per prompt", "tokens", "workload"),
    Axis("depth", "Depth", "depth {}", "tokens already in the context when timing starts", "tokens", "workload"),
    Axis("users", "Users", "{} user{s}", "concurrent users; each sends its next request once answered", "", "workload"),
    Axis(
        "rate_per_s",
        "Arrivals",
        "{} requests/s",
        "requests per second, arriving at random (Poisson)",
        "1/s",
        "workload",
        kind="real",
    ),
    Axis("model", "Model", "{}", "GGUF file or folder of safetensors", where="cell", kind="path", changes_answers=True),
    Axis(
        "build",
        "llama.cpp build",
        "build {}",
        "folder of llama.cpp libraries of the same version; default: those of the Python package",
        where="cell",
        kind="path",
        unset="default",
    ),
    Axis(
        "arm",
        "Engine",
        "{}",
        "what runs the model: this pool, a server, PyTorch by transformers, or llama.cpp called in another way",
        where="cell",
        kind="engine",
        choices=ENGINES,
    ),
)

_LAYOUT, _MODEL = AXES[0], next(axis for axis in AXES if axis.name == "model")

EMBEDDING_AXES = (
    replace(_LAYOUT, help="processes that share the model × threads of each; 2xauto: allowed cores / 2 for each"),
    Axis(
        "backend",
        "Computed by",
        "{}",
        "what computes the vectors; all but torch differ slightly from it, which is measured too",
        where="embedding",
        kind="backend",
        choices=tuple(kind.name for kind in KINDS),
        changes_answers=True,
    ),
    Axis(
        "tokens_per_batch",
        "Batch",
        "batches of {}",
        "tokens that a process computes at once, including padding; auto: the best number for its threads",
        "tokens",
        where="embedding",
        unset="auto",
    ),
    Axis("num_texts", "Texts", "{} text{s} at once", "texts submitted together", where="texts"),
    Axis("num_words", "Text length", "{} word{s}", "average words per text", "words", where="texts"),
    replace(_MODEL, help="sentence-transformers folder, or the name of an embedding model on this machine"),
)
AXES_BY_NAME = {axis.name: axis for axis in (*EMBEDDING_AXES, *AXES)}


def axes_of(question: Question) -> dict[str, Axis]:
    """Return the axes that a plan of that question may vary, by name, in display order."""
    return {axis.name: axis for axis in (EMBEDDING_AXES if question == "embedding" else AXES)}


def axis_of(name: str, question: Question = "speed") -> Axis:
    """Return the axis of that name; raises ConfigError with the nearest known name."""
    known = axes_of(question)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        what = "embedding axis" if question == "embedding" else "axis"
        raise ConfigError(f"there is no {what} {quoted(name)}; {hint}")
    return known[name]


def parse_values(name: str, text: str, question: Question = "speed") -> tuple[Any, ...]:
    """Return the values that `text` names on axis `name`, see `values_of`; an unknown axis raises ConfigError too."""
    return values_of(axis_of(name, question), text)
