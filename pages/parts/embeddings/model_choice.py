"""Selection of the embedding model and its backend; its memory can be freed."""

import streamlit as st

from engine.embedding.models import EMBEDDED_NAME
from engine.embedding.specs import EmbedSpec
from engine.errors import EngineError
from engine.workbench import Workbench
from pages.parts.address import bound
from pages.parts.embeddings import backend_choice
from pages.parts.notice import notice
from pages.parts.plain import plain

LONGEST_NAME = 48


def choose(bench: Workbench) -> EmbedSpec | None:
    """Return the model and backend in the URL and draw their selector; None if there is no such model."""
    given = st.query_params.get("model", "")
    name = plain(given.strip() or EMBEDDED_NAME, LONGEST_NAME)
    with st.popover(name, icon=":material/hub:", key="embed_model_choice", width="content"):
        st.caption("The embedding model of this page; the model in the sidebar generates text.")
        st.text_input(
            "Model", **bound("model", "embed_model", given), placeholder=EMBEDDED_NAME,
            help="A folder of sentence-transformers, a GGUF file, or the name of one in the models folder or the hub's "
            "cache",
        )  # fmt: skip
        st.button(
            "Free its memory", key="embed_release", type="tertiary", icon=":material/eject:",
            on_click=bench.embedding.release, disabled=not bench.embedding.is_open,
            help="Vectors that are there stay; the next texts load it again",
        )  # fmt: skip
    try:
        return EmbedSpec(model=given.strip(), backend=backend_choice.choose(bench, given.strip()))
    except EngineError as error:
        notice(error)
        return None
