"""Validation of imported steps: the columns of their table, and the constraints on their values."""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from engine.specs import MAX_RECORDED
from engine.stages import FORBIDDEN, MAX_STAGES

_FIGURES = ("logprob", "entropy", "normaliser", "p_final", "draw", "elapsed_s")
_COUNTS = ("position", "id", "flags", "num_kept")
_STAGES = {"stage_kept": pa.int32(), "stage_mass": pa.float32(), "top_cut": pa.uint8()}
_LISTS = {"top_ids": pa.int32(), "top_logprobs": pa.float32(), "top_p_final": pa.float32()}

STEP_COLUMNS = {
    "trial_id": pa.string(),
    "is_prompt": pa.bool_(),
    **dict.fromkeys(_COUNTS, pa.int32()),
    "rank": pa.int32(),
    **dict.fromkeys(_FIGURES, pa.float64()),
    **{name: pa.list_(kind) for name, kind in (_LISTS | _STAGES).items()},
}
"""Columns as in the table `steps` of the history, with trial_id as text."""

REQUIRED = tuple(name for name in STEP_COLUMNS if name not in _STAGES)
"""Columns that every file of steps has; older ones know no stages."""

_ALWAYS = ("trial_id", "is_prompt", *_COUNTS, "top_ids", "top_logprobs")


def checked_steps(table: pa.Table, where: str) -> pa.Table:
    """Return the table with null for NaN figures; raises ValueError with `where` for invalid steps."""

    def refuse(is_wrong: pa.ChunkedArray, reason: str) -> None:
        if pc.any(is_wrong, min_count=0).as_py():
            raise ValueError(f"{where}: {reason}")

    for name in _ALWAYS:
        refuse(pc.is_null(table[name]), f"a step has no {name}")
    for name in _COUNTS:
        refuse(pc.less(table[name], 0), f"{name} is less than 0")
    for number, name in enumerate(table.column_names):
        if name in _FIGURES:
            figures = pc.if_else(pc.is_nan(table[name]), None, table[name])
            table = table.set_column(number, name, figures)
            refuse(_is_infinite(figures, may_be_minus=name == "logprob"), f"{name} is infinite")
    lengths = {name: pc.fill_null(pc.list_value_length(table[name]), 0) for name in _LISTS}
    refuse(pc.greater(lengths["top_ids"], MAX_RECORDED), f"a step has more than {MAX_RECORDED:,} candidates")
    refuse(pc.not_equal(lengths["top_ids"], lengths["top_logprobs"]), "the numbers of candidates and logprobs differ")
    refuse(pc.less(lengths["top_ids"], lengths["top_p_final"]), "a step has more probabilities than candidates")
    for name in _LISTS:
        values = pc.list_flatten(table[name])
        refuse(pc.is_null(values, nan_is_null=True), f"{name} has a missing value")
        refuse(
            pc.less(values, 0) if name != "top_logprobs" else _is_infinite(values, may_be_minus=True),
            f"{name} has an invalid value",
        )
    _check_stages(table, lengths["top_ids"], refuse)
    return table


def _check_stages(
    table: pa.Table, num_candidates: pa.ChunkedArray, refuse: Callable[[pa.ChunkedArray, str], None]
) -> None:
    """Check what sampler stages left, which a step has whole or not at all."""
    if "stage_kept" not in table.column_names:
        return
    num_stages, num_masses, num_cuts = (pc.fill_null(pc.list_value_length(table[name]), 0) for name in _STAGES)
    refuse(pc.not_equal(num_stages, num_masses), "the numbers of stages differ")
    refuse(pc.greater(num_stages, MAX_STAGES), f"a step has more than {MAX_STAGES} stages")
    expected = pc.if_else(pc.greater(num_stages, 0), num_candidates, 0)
    refuse(pc.not_equal(num_cuts, expected), "the numbers of candidates and of their stages differ")
    kept, mass, cut = (pc.list_flatten(table[name]) for name in _STAGES)
    for name, values in zip(_STAGES, (kept, mass, cut), strict=True):
        refuse(pc.is_null(values, nan_is_null=True), f"{name} has a missing value")
    refuse(pc.less(kept, 0), "stage_kept has an invalid value")
    refuse(pc.or_(pc.less(mass, 0), pc.greater(mass, 1)), "stage_mass is no probability")
    of_step = pc.list_parent_indices(table["top_cut"].combine_chunks())
    stage = pc.bit_wise_and(pc.cast(cut, pa.int32()), FORBIDDEN - 1)
    refuse(pc.greater(stage, pc.take(num_stages, of_step)), "top_cut names no stage")


def _is_infinite(values: pa.ChunkedArray, *, may_be_minus: bool) -> pa.ChunkedArray:
    return pc.equal(values, float("inf")) if may_be_minus else pc.is_inf(values)
