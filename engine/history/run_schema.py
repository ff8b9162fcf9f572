"""Schema of a run's JSON: plan, machine, versions and outcome of the run, settings and facts of its configurations.

One table is used for writing and reading. A name that is not in it may have any plain value, so that later versions can
add names; a name that is in it has its type, so that readers of a run need no further checks.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from engine.samples import METRICS_BY_NAME

MOST_NAMES = 1_000
LONGEST_TEXT = 1 << 20
LARGEST = 1 << 53
"""Largest integer up to which a 64-bit float, and thus JavaScript, represents every integer exactly."""

Text = Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)]
Word = Annotated[str, msgspec.Meta(max_length=1_000)]
Whole = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Scalar = bool | Whole | float | Text | None
Plain = Scalar | Annotated[list[Scalar], msgspec.Meta(max_length=100_000)]
Named = Annotated[dict[Text, Plain], msgspec.Meta(max_length=MOST_NAMES)]

Part = Literal["plan", "machine", "versions", "outcome", "settings", "facts"]
OF_RUN: tuple[Part, ...] = ("plan", "machine", "versions", "outcome")

TYPES: Mapping[Part, Mapping[str, Any]] = {
    "plan": {
        **dict.fromkeys(("name", "question", "model", "goal"), Text),
        **dict.fromkeys(("rounds", "seed", "anchor"), Count),
        **dict.fromkeys(("timeout_s", "budget_s"), float),
        **dict.fromkeys(("measures_cold", "compares_answers", "may_change_answers"), bool),
        "axes": dict[Text, Annotated[list[Scalar], msgspec.Meta(max_length=10_000)]],
        **dict.fromkeys(("pool", "workload"), Named),
        "objective": dict[Text, float],
    },
    "machine": {
        **dict.fromkeys(("name", "cpu", "gpu", "governor", "system", "architecture", "hash", "noted", "source"), Text),
        "huge_pages": Text,
        **dict.fromkeys(("cores", "threads", "memory_bytes"), Count | None),
        "allowed_cores": Annotated[list[Count], msgspec.Meta(max_length=100_000)] | None,
        "cpu_quota": float | None,
        "llama": dict[Text, Text],
        "node": dict[Text, Text],
    },
    "versions": {},
    "outcome": {
        **dict.fromkeys(("sentence", "goal", "word"), Text),
        "metric": Literal[tuple(METRICS_BY_NAME)],
        **dict.fromkeys(("default", "winner", "leader", "more_rounds", "num_tried", "num_cells"), Count | None),
        "flat": Annotated[list[Count], msgspec.Meta(max_length=10_000)],
        "pool": Named,
        "gain": dict[Text, float | None] | None,
        "budget_s": float | None,
    },
    "settings": {
        **dict.fromkeys(("model", "arm", "load", "type_k", "type_v", "backend", "quantisation", "engine"), Text),
        **dict.fromkeys(("variant", "model_fn", "machine"), Text),
        **dict.fromkeys(("build", "dtype"), Text | None),
        "layout": Word,
        **dict.fromkeys(("parallel", "instances", "n_ctx", "num_prompt", "num_generated", "depth"), Count),
        **dict.fromkeys(("num_texts", "num_words"), Count),
        **dict.fromkeys(("threads", "threads_batch", "n_batch", "n_ubatch", "users", "tokens_per_batch"), Count | None),
        "n_gpu_layers": Whole,
        "rate_per_s": float | None,
        **dict.fromkeys(("pin", "share_weights"), bool),
        "flash_attn": bool | None,
        "llama_bench": dict[Text, Scalar],
    },
    "facts": {},
}
_OTHER: Mapping[Part, Any] = {"versions": Text, "facts": float | None}
"""Types of names that are not in TYPES, by part; parts not listed allow any plain value."""


def check(part: Part, values: Mapping[str, Any]) -> None:
    """Raise ValueError for too many names, or naming the first of these decoded JSON values that has a wrong type."""
    if len(values) > MOST_NAMES:
        raise ValueError(f"{part} has {len(values):,} names; the limit is {MOST_NAMES:,}")
    for name, value in values.items():
        if wrong := _fault(part, name, value):
            raise ValueError(wrong)


def sound(part: Part, values: Any) -> dict[str, Any]:
    """Return the values that have their types; earlier versions stored values without checking them."""
    if not isinstance(values, dict):
        return {}
    return {name: value for name, value in values.items() if not _fault(part, name, value)}


def _fault(part: Part, name: str, value: Any) -> str:
    """Return what is wrong with one value, empty where it is valid."""
    try:
        msgspec.convert(value, TYPES[part].get(name, _OTHER.get(part, Plain | Named)))
    except (msgspec.ValidationError, RecursionError) as error:
        return f"{part}, {name[:100]!r}: {error}"
    return ""
