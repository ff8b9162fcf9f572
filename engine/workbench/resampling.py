"""What other sampling parameters draw at the recorded steps of a trial, from their candidates and random numbers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from engine.errors import ConfigError
from engine.llama.frozen import Flip, FrozenSteps, Resampled, Resampler
from engine.specs import Sampling
from engine.stages import TEMPERATURE
from engine.workbench.trials import Trial

SLIDERS = (
    TEMPERATURE,
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
)
"""Sampling parameters that may be changed."""


class SampledAgain(NamedTuple):
    """Steps of a trial sampled again.

    own: the trial's own values of SLIDERS; idle: those of its SLIDERS whose stage its chain leaves out; num_candidates:
    how many each step has kept.
    """

    own: dict[str, float]
    idle: tuple[str, ...]
    num_candidates: int
    result: Resampled


def sample_again(resampler: Resampler, trial: Trial, changed: Mapping[str, float], shown: int | None) -> SampledAgain:
    """Sample all steps so far again with the trial's own parameters and these changes, by name.

    shown: the step whose distribution is wanted. Raises ConfigError for values out of range or no such step, and as
    `Resampler.resample`.
    """
    own, num_steps = trial.draft.sampling, len(trial.steps)
    if shown is not None and not 0 <= shown < num_steps:
        raise ConfigError("there is no such token")
    result = resampler.resample(
        f"{trial.id} {num_steps}",
        lambda: FrozenSteps.of(trial.steps, slice(num_steps)),
        with_changes(own, changed),
        shown,
    )
    idle = tuple(name for name in SLIDERS if _is_idle(name, own))
    return SampledAgain({name: getattr(own, name) for name in SLIDERS}, idle, trial.steps.k, result)


def with_changes(own: Sampling, changed: Mapping[str, float]) -> Sampling:
    """Return the parameters with changed SLIDERS. Raises ConfigError for another name, or a value out of range."""
    for name in changed:
        if name not in SLIDERS:
            raise ConfigError(f"{name}: cannot be changed for recorded steps; those that can: {', '.join(SLIDERS)}")
    top_k = changed.get("top_k", own.top_k)
    values: dict[str, Any] = {**changed, "top_k": int(top_k) if float(top_k).is_integer() else top_k}
    return replace(own, **values)


def flips(resampler: Resampler, trial: Trial, step: int) -> list[Flip]:
    """Return how far the sampling parameters of a trial may move before another token is drawn at a step.

    Raises ConfigError where the step's candidates do not decide that, and as `Resampler.flips`.
    """
    return resampler.flips(FrozenSteps.of(trial.steps, slice(step, step + 1)), trial.draft.sampling)


def _is_idle(name: str, own: Sampling) -> bool:
    """Return whether a parameter does nothing, whatever its value: its stage is not in the chain."""
    if name.endswith("_penalty"):
        return "penalties" not in own.samplers or own.penalty_last_n == 0
    return name not in own.samplers
