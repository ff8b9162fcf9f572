"""Sampler stages: which of them run for given parameters, and in which order."""

from collections.abc import Callable

from engine.specs import Sampling

MAX_STAGES = 16
"""Upper bound: there are fewer, with the bias, the grammar and every stage of a chain."""

BIAS, GRAMMAR, MIROSTAT, TEMPERATURE = "logit_bias", "grammar", "mirostat", "temperature"
FORBIDDEN = 128
"""Flag beside the stage that cut a candidate: the grammar forbids it, whether or not that stage was reached."""
BEYOND_CANDIDATES = (GRAMMAR, MIROSTAT, "dry", "xtc")
"""Stages whose result depends on more than a step's candidates and its random number."""

_IS_ON: dict[str, Callable[[Sampling], object]] = {
    "penalties": lambda s: s.penalty_last_n and (s.repeat_penalty != 1 or s.frequency_penalty or s.presence_penalty),
    "dry": lambda s: s.dry_multiplier > 0 and s.dry_penalty_last_n,
    "top_n_sigma": lambda s: s.top_n_sigma > 0,
    "top_k": lambda s: s.top_k > 0,
    "typical_p": lambda s: s.typical_p < 1,
    "top_p": lambda s: s.top_p < 1,
    "min_p": lambda s: s.min_p > 0,
    "xtc": lambda s: s.xtc_probability > 0,
    TEMPERATURE: lambda s: True,
}


def chain_of(sampling: Sampling) -> tuple[str, ...]:
    """Return the stages of llama.cpp's sampler chain that these parameters switch on, in their order, without the draw.

    With mirostat the chain is the temperature and mirostat itself, as in llama.cpp (common/sampling.cpp).
    """
    if sampling.mirostat:
        return TEMPERATURE, MIROSTAT
    return tuple(name for name in sampling.samplers if _IS_ON[name](sampling))


def stages_of(sampling: Sampling) -> tuple[str, ...]:
    """Return all stages that may cut candidates or move their logits: the bias, the grammar, then the chain.

    The grammar cuts only where it rejected the first draw.
    """
    before = [name for name, is_on in ((BIAS, sampling.logit_bias), (GRAMMAR, _has_grammar(sampling))) if is_on]
    return *before, *chain_of(sampling)


def _has_grammar(sampling: Sampling) -> bool:
    return bool(sampling.grammar or sampling.json_schema)
