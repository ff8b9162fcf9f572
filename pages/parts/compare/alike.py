"""Semantic similarity of the variants' answers: against the first variant, and for every pair."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import streamlit as st

from engine.step_parts import Floats
from engine.workbench import Workbench
from engine.workbench.semantic_index import SPEC
from engine.workbench.similarity import cosines
from pages.parts.address import put
from pages.parts.embeddings import waiting
from pages.parts.labels import distinct

KEY, NAME, ON = "arms_meaning", "meaning", "1"
HELP = (
    "Semantic similarity of the answers shown: the cosine of their embeddings. 1.00: same meaning, about 0: "
    "unrelated. Model: all-MiniLM-L6-v2, which was trained on English and reads the first 256 tokens."
)


class Said(NamedTuple):
    """The answer of a variant: its label, the id of the trial, and the text."""

    label: str
    trial_id: str
    text: str


def control() -> None:
    """Draw the switch for the comparison of meanings; the model is loaded only if it is on."""
    st.session_state[KEY] = _is_on()
    st.toggle("Similarity", key=KEY, on_change=lambda: put(NAME, ON if st.session_state[KEY] else ""), help=HELP)


def show(bench: Workbench, arms: Sequence[Said]) -> Mapping[str, str]:
    """Return by trial id how similar each answer is to the first, as text; empty if switched off.

    With more than two answers, a table of all pairs is drawn as well.
    """
    said = [arm for arm in arms if arm.text.strip()]
    if not _is_on() or len(said) < 2:
        return {}
    vectors = _vectors(bench, said)
    if vectors is None:
        return {}
    alike = cosines(vectors)
    if len(said) > 2:
        _pairs([arm.label for arm in said], alike)
    first, *others = said
    return {
        arm.trial_id: f"semantic similarity {alike[0, place]:.2f} to {first.label}"
        for place, arm in enumerate(others, 1)
    }


def _is_on() -> bool:
    return st.query_params.get(NAME) == ON


def _vectors(bench: Workbench, said: Sequence[Said]) -> Floats | None:
    """Return the vectors from the history if it has all of them, else compute them now."""
    kept = bench.history.vectors.of_outputs([arm.trial_id for arm in said]) if bench.history else {}
    if len(kept) == len(said):
        return np.stack([kept[arm.trial_id] for arm in said])
    found = waiting.vectors(bench, tuple(arm.text for arm in said), SPEC)
    return None if found is None else found.vectors


def _pairs(labels: Sequence[str], alike: Floats) -> None:
    names = list(distinct(dict(enumerate(labels))).values())
    with st.expander("Semantic similarity of all pairs", key="arms_pairs"):
        st.dataframe(
            {"": names, **{name: alike[:, place] for place, name in enumerate(names)}},
            hide_index=True,
            column_config={name: st.column_config.NumberColumn(format="%.2f", help=HELP) for name in names},
            alt="Cosine of each pair of answers",
        )
