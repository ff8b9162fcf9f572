"""Models described in words, as people write them: mistral 7b q4, 13b q5_k_m, llama 3 70b."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from engine.errors import ConfigError
from engine.models.catalogue import Entry, read_catalogue
from engine.models.fit import fit_row
from engine.models.ggml import FILE_TYPES
from engine.models.gguf import ModelFile
from engine.models.planned import planned_model
from engine.models.shapes import SHAPES, Shape
from engine.models.size_class import LONGEST_NAME, parameters_in
from engine.specs import PoolSpec

USUAL_TYPE = "Q4_K_M"
SMALLEST, LARGEST = 50e6, 2e12
"""Range of the number of parameters."""

SMALLER = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K")
"""Quantisations that are worth trying where a larger one does not fit, the most precise first."""

EXAMPLES = "mistral 7b q4, 13b q5_k_m or llama 3 70b"

_NEAR = 0.03
"""Relative difference up to which a number of parameters is that of the model's name: 7 B for 7.24 B is its name."""

_STEP = 256
"""Width and feed-forward net are multiples of this: the block of the K-quantisations."""

_QUANTISATION = re.compile(
    r"(?<![a-z0-9])(?:(i?q[1-8](?:[_ -]?(?:k(?:[_ -]?[sml])?|nl|xxs|xs)|[_-]?[01sm])?)|(bf16|fp?16|fp?32)"
    r"|(?:int|q)?([1-8])[ -]?bits?|int([1-8]))(?![a-z0-9])"
)
_SEPARATORS = re.compile(r"[\s_/:,-]+")
_ATTACHED = re.compile(r"(?<=[a-z])(?=\d{1,4}(?:\.\d{1,3})?[bm](?![a-z0-9]))")
_MIXTURE = re.compile(r"\d ?x ?\d|(?<![a-z0-9])a\d{1,3}(?:\.\d{1,3})?b|mixtral|moe(?![a-z])|gpt-?oss|671b")
_TYPES = {name.replace("_", "").casefold(): name for name in FILE_TYPES.values()}
_SHORT = {
    "q2": "Q2_K", "q3": "Q3_K_M", "q3k": "Q3_K_M", "q4": "Q4_K_M", "q4k": "Q4_K_M", "q5": "Q5_K_M", "q5k": "Q5_K_M",
    "q6": "Q6_K", "q8": "Q8_0", "q8k": "Q8_0", "q1": "IQ1_M", "iq4": "IQ4_XS", "iq3": "IQ3_M", "iq2": "IQ2_M",
    "fp16": "F16", "fp32": "F32",
}  # fmt: skip


class _Known(NamedTuple):
    """Published model. words: names of its family, without separators; shape: its name in SHAPES; size: as its name
    states it, in parameters."""

    title: str
    words: tuple[str, ...]
    shape: str
    size: float


_KNOWN = (
    _Known("Mistral 7B", ("mistral",), "mistral-7b", 7e9),
    _Known("Mistral Nemo 12B", ("mistral", "mistralnemo", "nemo"), "mistral-nemo-12b", 12e9),
    _Known("Mistral Small 24B", ("mistral", "mistralsmall"), "mistral-small-24b", 24e9),
    _Known("Llama 3.1 8B", ("llama", "llama3.1"), "llama-3.1-8b", 8e9),
    _Known("Llama 3.1 70B", ("llama", "llama3.1", "llama3.3"), "llama-3.1-70b", 70e9),
    _Known("Llama 3.1 405B", ("llama", "llama3", "llama3.1"), "llama-3.1-405b", 405e9),
    _Known("Llama 3.2 1B", ("llama", "llama3", "llama3.2"), "llama-3.2-1b", 1e9),
    _Known("Llama 3.2 3B", ("llama", "llama3", "llama3.2"), "llama-3.2-3b", 3e9),
    _Known("Llama 3 8B", ("llama3",), "llama-3-8b", 8e9),
    _Known("Llama 3 70B", ("llama3",), "llama-3-70b", 70e9),
    _Known("Llama 2 7B", ("llama", "llama2", "codellama", "vicuna"), "llama-2-7b", 7e9),
    _Known("Llama 2 13B", ("llama", "llama2", "codellama", "vicuna"), "llama-2-13b", 13e9),
    _Known("Llama 2 70B", ("llama2", "codellama"), "llama-2-70b", 70e9),
    _Known("TinyLlama 1.1B", ("tinyllama",), "tinyllama-1.1b", 1.1e9),
    _Known("Qwen2.5 0.5B", ("qwen", "qwen2", "qwen2.5"), "qwen2.5-0.5b", 0.5e9),
    _Known("Qwen2.5 1.5B", ("qwen", "qwen2", "qwen2.5"), "qwen2.5-1.5b", 1.5e9),
    _Known("Qwen2.5 3B", ("qwen", "qwen2", "qwen2.5"), "qwen2.5-3b", 3e9),
    _Known("Qwen2.5 7B", ("qwen", "qwen2", "qwen2.5"), "qwen2.5-7b", 7e9),
    _Known("Qwen2.5 14B", ("qwen", "qwen2", "qwen2.5"), "qwen2.5-14b", 14e9),
    _Known("Qwen2.5 32B", ("qwen", "qwen2", "qwen2.5"), "qwen2.5-32b", 32e9),
    _Known("Qwen2.5 72B", ("qwen", "qwen2", "qwen2.5"), "qwen2.5-72b", 72e9),
    _Known("Qwen3 0.6B", ("qwen", "qwen3"), "qwen3-0.6b", 0.6e9),
    _Known("Qwen3 1.7B", ("qwen", "qwen3"), "qwen3-1.7b", 1.7e9),
    _Known("Qwen3 4B", ("qwen", "qwen3"), "qwen3-4b", 4e9),
    _Known("Qwen3 8B", ("qwen", "qwen3"), "qwen3-8b", 8e9),
    _Known("Qwen3 14B", ("qwen3",), "qwen3-14b", 14e9),
    _Known("Qwen3 32B", ("qwen3",), "qwen3-32b", 32e9),
    _Known("Gemma 3 270M", ("gemma", "gemma3"), "gemma-3-270m", 270e6),
    _Known("Gemma 3 1B", ("gemma", "gemma3"), "gemma-3-1b", 1e9),
    _Known("Gemma 3 4B", ("gemma", "gemma3"), "gemma-3-4b", 4e9),
    _Known("Gemma 3 12B", ("gemma", "gemma3"), "gemma-3-12b", 12e9),
    _Known("Gemma 3 27B", ("gemma", "gemma3"), "gemma-3-27b", 27e9),
    _Known("SmolLM2 135M", ("smollm", "smollm2"), "smollm2-135m", 135e6),
    _Known("SmolLM2 360M", ("smollm", "smollm2"), "smollm2-360m", 360e6),
    _Known("SmolLM2 1.7B", ("smollm", "smollm2"), "smollm2-1.7b", 1.7e9),
    _Known("Phi-2", ("phi2",), "phi-2", 2.7e9),
    _Known("Phi-3 mini", ("phi", "phi3", "phi3mini", "phi3.5"), "phi-3-mini", 3.8e9),
    _Known("xLAM 1B", ("xlam",), "xlam-1b", 1e9),
)
"""Published models whose dimensions are in SHAPES; where only a size is given, the first of the nearest is meant."""


class Described(NamedTuple):
    """Model that a text describes. model: planned, without a file; title: as a sentence names it.

    basis: where its dimensions come from, and the quantisation where the text has none; is_scaled: they are those of a
    model of another size, scaled. entry: the same model in the catalogue, None where it is not there.
    """

    model: ModelFile
    title: str
    basis: str
    is_scaled: bool
    entry: Entry | None


def described(text: str) -> Described:
    """Return the model that a text describes: family, number of parameters and quantisation, in any order.

    A family whose models have one size needs no number; without a family, the dimensions are those of the nearest
    published model. Short quantisations mean the usual one, such as Q4_K_M for q4; none means Q4_K_M. Raises
    ConfigError saying what is missing or cannot be planned.
    """
    words = text.strip().casefold()
    if not words or len(words) > LONGEST_NAME:
        raise ConfigError(f"Type a model in up to {LONGEST_NAME} characters, such as {EXAMPLES}.")
    if _MIXTURE.search(words):
        raise ConfigError(
            f"{text.strip()!r} is a mixture of experts, whose memory and speed cannot be planned from its name: each "
            "token uses only a part of it. Choose its file."
        )
    quantisation, rest = _quantisation(words)
    rest = _ATTACHED.sub(" ", rest)
    size = parameters_in(rest)
    family = _family(rest)
    if size is None:
        size = _only_size(text.strip(), family)
    if not SMALLEST <= size <= LARGEST:
        raise ConfigError(
            f"{text.strip()!r}: {_as_named(size)} parameters; models can be planned from {_as_named(SMALLEST)} to "
            f"{_as_named(LARGEST)}."
        )
    near = min(family or _KNOWN, key=lambda known: abs(math.log(known.size / size)))
    return _planned(near, size, quantisation, is_of_family=bool(family))


def smaller_that_fits(found: Described, n_ctx: int, sequences: int, spec: PoolSpec) -> Described | None:
    """Return the model at the most precise smaller quantisation that fits in the free memory; None where none does.

    Raises ConfigError for numbers out of range.
    """
    for quantisation in SMALLER:
        other = described(f"{found.model.name} {quantisation}")
        if other.model.size < found.model.size and fit_row(other.model, n_ctx, sequences, spec).fits:
            return other
    return None


def _planned(near: _Known, size: float, quantisation: str, *, is_of_family: bool) -> Described:
    """Return the model of `size` parameters, with the dimensions of `near`, scaled where the sizes differ."""
    chosen = quantisation or USUAL_TYPE
    is_scaled = abs(near.size / size - 1) > _NEAR
    shape = _scaled(SHAPES[near.shape], size) if is_scaled else SHAPES[near.shape]
    name = near.title if is_of_family and not is_scaled else f"A {_as_named(size)} model"
    told = f"dimensions {'scaled from' if is_scaled else 'of'} {near.title}"
    if not is_of_family:
        told += ", as no family is named"
    if not quantisation:
        told += f"; {USUAL_TYPE}, as no quantisation is named"
    entry = _entry(near, chosen) if is_of_family and not is_scaled else None
    return Described(planned_model(name, shape, chosen), f"{name} at {chosen}", told, is_scaled, entry)


def _entry(known: _Known, quantisation: str) -> Entry | None:
    """Return the catalogue's file of a published model."""
    return next(
        (
            entry
            for entry in read_catalogue().entries
            if entry.name.startswith(known.shape) and entry.quantisation == quantisation
        ),
        None,
    )


def _quantisation(words: str) -> tuple[str, str]:
    """Return the quantisation in a text, empty where it has none, and the text without it."""
    found = _QUANTISATION.search(words)
    if found is None:
        return "", words
    named, plain, *bits = found.groups()
    key = _SEPARATORS.sub("", named or plain or f"q{bits[0] or bits[1]}")
    name = _SHORT.get(key) or _TYPES.get(key)
    if name is None:
        raise ConfigError(f"{found[0]!r} is no quantisation of llama.cpp: use one such as Q4_K_M, Q8_0 or F16.")
    return name, f"{words[: found.start()]} {words[found.end() :]}"


def _family(rest: str) -> Sequence[_Known]:
    """Return the published models of the family that a text names: of the longest name in it; empty where none is."""
    words = [word for word in _SEPARATORS.split(rest) if parameters_in(word) is None]
    joined = "".join(words)
    names = {word for known in _KNOWN for word in known.words if word in joined}
    longest = max(names, key=len, default="")
    return [known for known in _KNOWN if longest in known.words] if longest else ()


def _only_size(text: str, family: Sequence[_Known]) -> float:
    """Return the number of parameters of the only model of a family. Raises ConfigError where it must be named."""
    if len(family) == 1:
        return family[0].size
    if family:
        sizes = ", ".join(_as_named(known.size) for known in family)
        raise ConfigError(f"{text!r}: the number of parameters is missing. Add it; models of this family have {sizes}.")
    raise ConfigError(f"{text!r}: the number of parameters is missing. Type a model such as {EXAMPLES}.")


def _as_named(size: float) -> str:
    """Return a number of parameters as the names of models have it: 7B, 1.5B, 135M."""
    return f"{size / 1e9:,g}B" if size >= 1e9 else f"{size / 1e6:,g}M"


def _scaled(shape: Shape, size: float) -> Shape:
    """Return a shape of `size` parameters: width and layers grow alike, the feed-forward net has the rest.

    The vocabulary keeps its size where that is at most a third of the parameters; heads keep their width and groups.
    """
    growth = (size / planned_model("", shape, "F16").num_parameters) ** (1 / 3)
    width = max(1, round(shape.n_embd * growth / _STEP)) * _STEP
    layers = max(1, round(shape.n_layer * growth))
    is_grouped = shape.n_head_kv < shape.n_head
    heads_kv = shape.n_head_kv if is_grouped else max(1, round(shape.n_head * growth))
    heads = max(1, round(shape.n_head * growth / heads_kv)) * heads_kv
    scaled = replace(
        shape, n_embd=width, n_layer=layers, n_vocab=min(shape.n_vocab, int(size / 3 / (2 - shape.is_tied) / width)),
        n_head=heads, n_head_kv=heads_kv, n_head_width=shape.n_head_dim, n_ff=_STEP,
    )  # fmt: skip
    others = planned_model("", scaled, "F16").num_parameters
    wide = (2 if shape.architecture == "phi2" else 3) * width * layers
    return replace(scaled, n_ff=max(1, round((size - others) / wide / _STEP) + 1) * _STEP)
