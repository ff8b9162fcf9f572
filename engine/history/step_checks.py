"""Validation of imported steps: the columns of their table, and the constraints on their values."""

import pyarrow as pa
import pyarrow.compute as pc

from engine.specs import MAX_RECORDED

_FIGURES = ("logprob", "entropy", "normaliser", "p_final", "draw", "elapsed_s")
_COUNTS = ("position", "id", "flags", "num_kept")
_LISTS = {"top_ids": pa.int32(), "top_logprobs": pa.float32(), "top_p_final": pa.float32()}

STEP_COLUMNS = {
    "trial_id": pa.string(),
    "is_prompt": pa.bool_(),
    **dict.fromkeys(_COUNTS, pa.int32()),
    "rank": pa.int32(),
    **dict.fromkeys(_FIGURES, pa.float64()),
    **{name: pa.list_(kind) for name, kind in _LISTS.items()},
}
"""Columns as in the table `steps` of the history, with trial_id as text."""

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
    return table


def _is_infinite(values: pa.ChunkedArray, *, may_be_minus: bool) -> pa.ChunkedArray:
    return pc.equal(values, float("inf")) if may_be_minus else pc.is_inf(values)
