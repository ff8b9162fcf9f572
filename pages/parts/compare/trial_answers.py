"""Table of every answer of a comparison, for reading, sorting and download."""

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from engine.comparing.arms import Answer, ComparisonRecord, Outcome, labels
from pages.parts.number_columns import formats, scaled

WIDEST = 280
HELPS = {
    "decode": "Tokens after the first, divided by the time since the first",
    "first token": "First token decoded − submit: queue and prefill",
    "surprise": "Mean of -log2 of the model's probability over the generated tokens",
}


def show(record: ComparisonRecord, outcomes: Mapping[str, Outcome]) -> None:
    """Draw the table: a row for each trial, ordered by row of the prompt's table, variant and repeat."""
    answers = sorted(record.answers, key=lambda answer: (answer.row, answer.arm, answer.repeat))
    found = [outcomes.get(answer.trial_id) for answer in answers]
    called = labels(record.plan.arms)
    table = pd.DataFrame({
        **{f"{{{{{name}}}}}": [_value(record, answer, name) for answer in answers] for name in record.plan.variables},
        "variant": [called[answer.arm] for answer in answers],
        "repeat": [answer.repeat + 1 for answer in answers],
        "answer": [one.text if one else answer.error for one, answer in zip(found, answers, strict=True)],
        "tokens": [one.num_generated if one else None for one in found],
        **scaled("decode", "tok/s", [one.decode_per_s if one else None for one in found]),
        **scaled("first token", "s", [one.ttft_s if one else None for one in found]),
        **scaled("surprise", "bits", [one.mean_surprise_bits if one else None for one in found]),
        "shared machine": [answer.is_shared for answer in answers],
        "seed": [one.seed if one else None for one in found],
        "model": [f"{one.model_name} {one.quantisation}" if one else "" for one in found],
    })  # fmt: skip
    config = formats(table, HELPS) | {name: st.column_config.NumberColumn(format="%d") for name in ("tokens", "seed")}
    config["variant"] = st.column_config.TextColumn(width=arm_width(called))
    st.dataframe(table, hide_index=True, column_config=config, alt="All answers of the comparison")


def arm_width(called: Sequence[str]) -> int:
    """Return the width in pixels for the longest of these names; beside long answers a column would get too little."""
    return min(24 + 8 * max(map(len, called)), WIDEST)


def _value(record: ComparisonRecord, answer: Answer, name: str) -> str:
    own = record.plan.arms[answer.arm].variables
    return own.get(name, record.plan.rows[answer.row].get(name, ""))
