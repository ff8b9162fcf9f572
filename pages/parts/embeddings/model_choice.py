"""Selection of the embedding model and its backend; its memory can be freed."""

import streamlit as st

from engine.bench.planning.engines import is_external
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
    is_own = not is_external(st.query_params.get("backend", ""))
    name = plain(given.strip() or (EMBEDDED_NAME if is_own else "the engine's model"), LONGEST_NAME)
    with st.popover(name, icon=":material/hub:", key="embed_model_choice", width="content"):
        st.caption("The embedding model of this page; the model in the sidebar generates text.")
        st.text_input(
            "Model", **bound("model", "embed_model", given), placeholder=EMBEDDED_NAME if is_own else "",
            help="A folder of sentence-transformers, a GGUF file, or the name of one in the models folder or the hub's "
            "cache; of an external engine the name of one of its models",
        )  # fmt: skip
        st.button(
            "Free its memory" if is_own else "Disconnect", key="embed_release", type="tertiary",
            icon=":material/eject:", on_click=bench.embedding.release, disabled=not bench.embedding.is_open,
            help="Vectors that are there stay; the next texts open it again",
        )  # fmt: skip
    try:
        return EmbedSpec(model=given.strip(), backend=backend_choice.choose(bench, given.strip()))
    except EngineError as error:
        notice(error)
        return None
