"""Conversion of results and specs to plain JSON values, for exports, `--json` on the command line and the pages.

Bytes are lists of integers, as OpenAI's clients expect them. JSON has no infinity: minus infinity is the string
"-inf". null is a value that was not measured.
"""

import math
from collections.abc import Mapping
from dataclasses import fields
from datetime import date
from decimal import Decimal
from typing import Any, TypeVar

from engine.results import Completion
from engine.step_parts import Candidate, Stage, WatchedWord
from engine.steps import StepTable, TokenStep
from engine.validation import Spec

Figure = float | str | None
S = TypeVar("S", bound=Spec)


def figure(value: float | None) -> Figure:
    """Return the number itself, its name where it is infinite, or None for NaN, which means not measured."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def plain(value: Any) -> Any:
    """Return a database value in JSON form: times and ids as text, infinities by name, None for NaN."""
    match value:
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case bool() | int() | str() | None:
            return value
        case float():
            return figure(value)
        case bytes():
            return value.hex()
        case Decimal():
            return float(value)
        case date():
            return value.isoformat()
        case _:
            return str(value)


def candidate_to_dict(candidate: Candidate) -> dict[str, Any]:
    """Return one candidate as a dict by field name."""
    return {
        "id": candidate.id,
        "bytes": list(candidate.bytes),
        "text": candidate.text,
        "logprob": figure(candidate.logprob),
        "p_final": figure(candidate.p_final),
    }


def step_to_dict(step: TokenStep) -> dict[str, Any]:
    """Return one step as a dict by field name, its candidates under "top"."""
    return {
        "id": step.id,
        "bytes": list(step.bytes),
        "text": step.text,
        "logprob": figure(step.logprob),
        "rank": step.rank,
        "entropy": figure(step.entropy),
        "normaliser": figure(step.normaliser),
        "p_final": figure(step.p_final),
        "draw": step.draw,
        "elapsed_s": figure(step.elapsed_s),
        "num_kept": step.num_kept,
        "is_forced": step.is_forced,
        "is_resampled": step.is_resampled,
        "top": [candidate_to_dict(candidate) for candidate in step.top],
        **({"shares_moment": True} if step.shares_moment else {}),
        **({"stages": [stage_to_dict(stage) for stage in step.stages]} if step.stages else {}),
        **({"forbidden": list(step.forbidden)} if step.forbidden else {}),
        **({"watched": [watched_to_dict(word) for word in step.watched]} if step.watched else {}),
    }


def stage_to_dict(stage: Stage) -> dict[str, Any]:
    """Return what one sampler stage left as a dict; "cut" has the ids of the recorded candidates that it removed."""
    return {"stage": stage.name, "kept": stage.kept, "mass": stage.mass, "cut": list(stage.cut)}


def watched_to_dict(word: WatchedWord) -> dict[str, Any]:
    """Return the probability of a watched word as a dict; "ids" has its set of tokens."""
    return {"ids": list(word.ids), "logprob": figure(word.logprob), "rank": word.rank}


def completion_to_dict(completion: Completion) -> dict[str, Any]:
    """Return a finished job with all its steps as a dict."""
    return {
        "id": completion.id,
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "is_context_full": completion.is_context_full,
        "seed": completion.seed,
        "prompt_ids": list(completion.prompt_ids),
        "prompt_steps": _steps(completion.prompt_steps),
        "steps": _steps(completion.steps),
        "timings": {name: figure(value) for name, value in completion.timings.to_dict().items()},
    }


def spec_to_dict(spec: Spec) -> dict[str, Any]:
    """Return all values of a spec with its defaults, so that later changes of defaults do not alter stored specs."""
    return {field.name: _plain(getattr(spec, field.name)) for field in fields(spec)}  # type: ignore[arg-type]


def spec_from_dict(kind: type[S], values: dict[str, Any]) -> S:
    """Return the spec that `spec_to_dict` wrote; raises ConfigError for unknown names and values out of range."""
    known = {field.name: field.default for field in fields(kind)}  # type: ignore[arg-type]
    read: dict[str, Any] = {
        name: float(value) if isinstance(known.get(name), float) and value in ("inf", "-inf") else value
        for name, value in values.items()
    }
    if "logit_bias" in read:
        read["logit_bias"] = tuple((int(token), float(bias)) for token, bias in read["logit_bias"])
    return kind.from_dict(read)


def _steps(table: StepTable) -> list[dict[str, Any]]:
    return [step_to_dict(step) for step in table]


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else figure(value)
