"""Models described in words, as people write them: mistral 7b q4, 13b q5_k_m, llama 3 70b."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from engine.errors import ConfigError
from engine.models.catalogue import Entry, read_catalogue
from engine.models.experts import Experts
from engine.models.fit import fit_row
from engine.models.ggml import FILE_TYPES
from engine.models.gguf import ModelFile
from engine.models.planned import planned_model
from engine.models.published import PUBLISHED, Published
from engine.models.scaled_shapes import scaled, split
from engine.models.shapes import Shape
from engine.models.size_class import LONGEST_NAME, parameters_in
from engine.specs import PoolSpec

USUAL_TYPE = "Q4_K_M"
SMALLEST, LARGEST = 50e6, 2e12
"""Range of the number of parameters."""

SMALLER = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K")
"""Quantisations that are worth trying where a larger one does not fit, the most precise first."""

EXAMPLES = "mistral 7b q4, 13b q5_k_m or qwen3 30b a3b"

_NO_FAMILY = ", as no family is named"
_NEAR = 0.03
"""Relative difference up to which a number of parameters is that of the model's name: 7 B for 7.24 B is its name."""

_QUANTISATION = re.compile(
    r"(?<![a-z0-9])(?:(i?q[1-8](?:[_ -]?(?:k(?:[_ -]?[sml])?|nl|xxs|xs)|[_-]?[01sm])?)|(bf16|fp?16|fp?32)"
    r"|(?:int|q)?([1-8])[ -]?bits?|int([1-8]))(?![a-z0-9])"
)
_VOWEL = re.compile(r"8|1[18](?![0-9])")
"""Numbers that are spoken with a vowel first."""
_SEPARATORS = re.compile(r"[\s_/:,-]+")
_ATTACHED = re.compile(r"(?<=[a-z])(?=\d{1,4}(?:\.\d{1,3})?[bm](?![a-z0-9]))")
_EXPERTS = re.compile(r"(?<![a-z0-9.])(\d{1,3}) ?x ?(\d{1,4}(?:\.\d{1,3})?) ?b(?![a-z0-9])")
"""Number of experts and size of a model with one of them: 8x7b."""
_ACTIVE = re.compile(r"(?<![a-z0-9])a(\d{1,3}(?:\.\d{1,3})?)b(?![a-z0-9])")
"""Number of parameters that a token uses: a3b."""
_MIXTURE = re.compile(r"moe(?![a-z])|671b|llama[ -]?4(?![0-9])")
"""What marks a mixture of experts whose name does not say how much of it a token uses."""
MOST_EXPERTS = 512
_USED_OF_NAMED, _USED_OF_SPLIT = 2, 8
"""Experts that a token uses where only their number is known, as in Mixtral, or their total size, as in Qwen3."""
_TYPES = {name.replace("_", "").casefold(): name for name in FILE_TYPES.values()}
_SHORT = {
    "q2": "Q2_K", "q3": "Q3_K_M", "q3k": "Q3_K_M", "q4": "Q4_K_M", "q4k": "Q4_K_M", "q5": "Q5_K_M", "q5k": "Q5_K_M",
    "q6": "Q6_K", "q8": "Q8_0", "q8k": "Q8_0", "q1": "IQ1_M", "iq4": "IQ4_XS", "iq3": "IQ3_M", "iq2": "IQ2_M",
    "fp16": "F16", "fp32": "F32",
}  # fmt: skip


class _Asked(NamedTuple):
    """Sizes in a text: of a mixture the number of experts, the size with one of them, and the active parameters; 0
    where the text has none. rest: the text without them."""

    experts: int
    each: float
    active: float
    rest: str

    @property
    def is_mixture(self) -> bool:
        """Return whether the text states that a token uses a part of the model."""
        return bool(self.experts or self.active)


class _Meant(NamedTuple):
    """Model that is meant, before its quantisation. basis: where its dimensions come from."""

    name: str
    shape: Shape
    experts: Experts | None
    basis: str
    is_scaled: bool
    published: Published | None


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
    published model. Of a mixture of experts the text has the number of experts, as in 8x7b, or the parameters that a
    token uses, as in 30b a3b. Short quantisations mean the usual one, such as Q4_K_M for q4; none means Q4_K_M. Raises
    ConfigError saying what is missing or cannot be planned.
    """
    words = text.strip().casefold()
    if not words or len(words) > LONGEST_NAME:
        raise ConfigError(f"Type a model in up to {LONGEST_NAME} characters, such as {EXAMPLES}.")
    quantisation, rest = _quantisation(words)
    asked = _asked(rest)
    family = _family(asked.rest)
    size = asked.experts * asked.each or parameters_in(asked.rest) or _only_size(text.strip(), family)
    for number in (size, *filter(None, (asked.each, asked.active))):
        if not SMALLEST <= number <= LARGEST:
            raise ConfigError(
                f"{text.strip()!r}: {_as_named(number)} parameters; models can be planned from {_as_named(SMALLEST)} "
                f"to {_as_named(LARGEST)}."
            )
    has_experts = asked.is_mixture or bool(_MIXTURE.search(words))
    meant = _published(asked, family, size, has_experts)
    if meant is None and (has_experts or (family and all(known.experts for known in family))):
        meant = _mixture(text.strip(), asked, family, size)
    return _planned(meant or _dense(family, size), quantisation)


def smaller_that_fits(found: Described, n_ctx: int, sequences: int, spec: PoolSpec) -> Described | None:
    """Return the model at the most precise smaller quantisation that fits in the free memory; None where none does.

    Raises ConfigError for numbers out of range.
    """
    for quantisation in SMALLER:
        other = described(f"{found.model.name} {quantisation}")
        if other.model.size < found.model.size and fit_row(other.model, n_ctx, sequences, spec).fits:
            return other
    return None


def _published(asked: _Asked, family: Sequence[Published], size: float, has_experts: bool) -> _Meant | None:
    """Return the published model of this size: of the family, else one with such dimensions; None where none is."""
    if has_experts and not family and not asked.is_mixture:
        return None
    offered = [known for known in family or PUBLISHED if known.experts or not has_experts]
    if not family and not has_experts:
        offered = [known for known in PUBLISHED if not known.experts]
    near = _nearest(offered, size)
    if near is None or not _is_near(near.size, size):
        return None
    if asked.active and not _is_near(near.active, asked.active):
        return None
    if asked.experts and (near.experts is None or near.experts.total != asked.experts):
        return None
    name = near.title if family else _as_asked(asked, size)
    basis = f"dimensions of {near.title}{'' if family else _NO_FAMILY}"
    return _Meant(name, near.shape, near.experts, basis, is_scaled=False, published=near if family else None)


def _dense(family: Sequence[Published], size: float) -> _Meant:
    """Return a model of which a token uses all weights, with the dimensions of the nearest published one, scaled."""
    shape, basis = _like(family, size)
    return _Meant(_a_model(_as_named(size)), shape, None, basis, is_scaled=True, published=None)


def _mixture(text: str, asked: _Asked, family: Sequence[Published], size: float) -> _Meant:
    """Return a mixture of experts that is not published, from its number of experts or its active parameters.

    Raises ConfigError where the text has neither, or numbers that do not go together.
    """
    if asked.active >= size:
        raise ConfigError(f"{text!r}: a token cannot use all of {_as_named(size)} parameters in a mixture of experts.")
    if asked.experts:
        shape, basis = _like(family, asked.each)
        experts = Experts(asked.experts, _USED_OF_NAMED)
    elif asked.active:
        dense, basis = _like(family, asked.active)
        shape, experts = split(dense, _USED_OF_SPLIT, size)
    else:
        raise ConfigError(
            f"{text!r} is a mixture of experts: add how many of its parameters a token uses, as in 30b a3b, or choose "
            "its file."
        )
    if not experts.used <= experts.total <= MOST_EXPERTS:
        raise ConfigError(
            f"{text!r}: a mixture of {experts.total:,} experts; models can be planned with {experts.used} to "
            f"{MOST_EXPERTS}, of which a token uses {experts.used}."
        )
    basis += f", with {experts.total} experts of which a token uses {experts.used}"
    return _Meant(_as_asked(asked, size), shape, experts, basis, is_scaled=True, published=None)


def _like(family: Sequence[Published], size: float) -> tuple[Shape, str]:
    """Return dimensions for `size` parameters, and whose they are: those of the nearest dense model, scaled."""
    dense = [known for known in PUBLISHED if not known.experts]
    near = _nearest([known for known in family if not known.experts] or dense, size)
    assert near is not None
    remark = "" if family else _NO_FAMILY
    if _is_near(near.size, size):
        return near.shape, f"dimensions of {near.title}{remark}"
    return scaled(near.shape, size), f"dimensions scaled from {near.title}{remark}"


def _nearest(offered: Sequence[Published], size: float) -> Published | None:
    return min(offered, key=lambda known: abs(math.log(known.size / size)), default=None)


def _is_near(named: float, size: float) -> bool:
    return abs(named / size - 1) <= _NEAR


def _planned(meant: _Meant, quantisation: str) -> Described:
    """Return the model at this quantisation, or at the usual one where that is empty."""
    chosen = quantisation or USUAL_TYPE
    basis = meant.basis
    if meant.experts and meant.experts.type:
        basis += f", whose experts are {meant.experts.type} at every quantisation"
    if not quantisation:
        basis += f"; {USUAL_TYPE}, as no quantisation is named"
    model = planned_model(meant.name, meant.shape, chosen, meant.experts)
    entry = _entry(meant.published, chosen) if meant.published else None
    return Described(model, f"{meant.name} at {chosen}", basis, meant.is_scaled, entry)


def _entry(known: Published, quantisation: str) -> Entry | None:
    """Return the catalogue's file of a published model."""
    return next(
        (
            entry
            for entry in read_catalogue().entries
            if entry.name.startswith(known.dimensions) and entry.quantisation == quantisation
        ),
        None,
    )


def _asked(words: str) -> _Asked:
    """Return the sizes of a mixture in a text, without its quantisation, and the rest, in which numbers stand apart."""
    experts, active = _EXPERTS.search(words), _ACTIVE.search(words)
    rest = _ATTACHED.sub(" ", _ACTIVE.sub(" ", _EXPERTS.sub(" ", words)))
    return _Asked(
        int(experts[1]) if experts else 0,
        float(experts[2]) * 1e9 if experts else 0.0,
        float(active[1]) * 1e9 if active else 0.0,
        rest,
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


def _family(rest: str) -> Sequence[Published]:
    """Return the published models of the family that a text names: of the longest name in it; empty where none is."""
    words = [word for word in _SEPARATORS.split(rest) if parameters_in(word) is None]
    joined = "".join(words)
    names = {word for known in PUBLISHED for word in known.words if word in joined}
    longest = max(names, key=len, default="")
    return [known for known in PUBLISHED if longest in known.words] if longest else ()


def _only_size(text: str, family: Sequence[Published]) -> float:
    """Return the number of parameters of the only model of a family. Raises ConfigError where it must be named."""
    if len(family) == 1:
        return family[0].size
    if family:
        sizes = ", ".join(known.title if known.experts else _as_named(known.size) for known in family)
        raise ConfigError(f"{text!r}: the number of parameters is missing. Add it; models of this family have {sizes}.")
    raise ConfigError(f"{text!r}: the number of parameters is missing. Type a model such as {EXAMPLES}.")


def _as_asked(asked: _Asked, size: float) -> str:
    """Return a model without a family as its text names it: A 7B model, A 4x7B model, A 30B A3B model."""
    if asked.experts:
        return _a_model(f"{asked.experts}x{_as_named(asked.each)}")
    return _a_model(f"{_as_named(size)} A{_as_named(asked.active)}" if asked.active else _as_named(size))


def _a_model(sizes: str) -> str:
    """Return a model of these sizes with its article: A 7B model, An 8B model."""
    return f"{'An' if _VOWEL.match(sizes) else 'A'} {sizes} model"


def _as_named(size: float) -> str:
    """Return a number of parameters as the names of models have it: 7B, 1.5B, 135M."""
    return f"{size / 1e9:,g}B" if size >= 1e9 else f"{size / 1e6:,g}M"
