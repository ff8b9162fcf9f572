"""Controls of the Cost page: the job and its model in one row, everything else in an expander; each is in the URL."""

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from engine.cost import WAYS, Rate
from pages.parts import address
from pages.parts.cost import asked, charts, job_form
from pages.parts.cost.job_estimates import EVERY_MODEL, Selection
from pages.parts.plain import plain

ADVANCED = (*job_form.REST, *job_form.GOALS, "utilisation", "counted", "every")


def first(known: Sequence[Rate], selection: Selection, values: Mapping[str, Any]) -> None:
    """Draw documents, words, output length and model."""
    models = [*dict.fromkeys(rate.model for rate in known), EVERY_MODEL]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        job_form.first(values)
        st.selectbox(
            "Model", models, width=260, help="Only speeds of the same model are compared.",
            **address.bound("model", "cost_model", selection.model),
        )  # fmt: skip
        if st.query_params:
            st.button("Reset", icon=":material/undo:", type="tertiary", on_click=asked.begin_anew, key="cost_reset")
    if selection.model == EVERY_MODEL:
        st.caption("These are different models; their tokens are not equal in value.")


def advanced(selection: Selection, values: Mapping[str, Any], other_way: str) -> None:
    """Draw the rest of the job, the goals and the way of counting; `other_way` is the answer by the other way."""
    number = sum(name in st.query_params for name in ADVANCED)
    with st.expander(f"Advanced ({number})" if number else "Advanced", icon=":material/tune:", key="cost_advanced"):
        job_form.rest(values)
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
            st.segmented_control(
                "Rates", tuple(reversed(WAYS)), format_func=charts.WAYS.__getitem__, required=True,
                help="Prompt tokens are read faster than tokens are generated; the notes used one rate for both.",
                **address.bound("counted", "cost_counted", selection.way),
            )  # fmt: skip
            st.toggle(
                "Every configuration", help="Off: the fastest of each machine, or the last run of a single one.",
                **address.bound("every", "cost_every", selection.is_every),
            )  # fmt: skip
        if other_way:
            st.caption(plain(other_way))
