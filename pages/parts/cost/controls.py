"""Controls of the Cost page: the speeds considered, deadline and budget, and how tokens are counted."""

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from engine.cost import WAYS, Rate
from pages.parts import address
from pages.parts.cost import asked, job_form
from pages.parts.cost.reckoning import EVERY_MODEL, Looked
from pages.parts.cost.results import SHORT


def show(known: Sequence[Rate], looked: Looked, values: Mapping[str, Any]) -> None:
    """Draw one row of controls; each is bound to the URL."""
    models = [*dict.fromkeys(rate.model for rate in known), EVERY_MODEL]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.selectbox(
            "Model", models, width=240, help="Machines are comparable only with the same model",
            **address.bound("model", "cost_model", looked.model),
        )  # fmt: skip
        job_form.goals(values)
        st.segmented_control(
            "Tokens counted", tuple(reversed(WAYS)), format_func=SHORT.__getitem__, required=True,
            help="As in the notes: all tokens at generation speed. Separate prefill: prompt tokens at prefill speed",
            **address.bound("counted", "cost_counted", looked.way),
        )  # fmt: skip
        st.toggle(
            "Every configuration", help="Off: only the fastest of each machine",
            **address.bound("every", "cost_every", looked.is_every),
        )  # fmt: skip
        if st.query_params:
            st.button("Reset to the notes' example", icon=":material/undo:", type="tertiary", on_click=asked.begin_anew)
    if looked.model == EVERY_MODEL:
        st.caption("These are different models; their tokens are not equal in value.")
