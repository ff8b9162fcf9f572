"""Texts on their way to vectors: the model that loads, how far it is, Stop, and what went wrong."""

import streamlit as st

from engine.embedding.specs import EmbedSpec
from engine.errors import EngineError
from engine.units import counted
from engine.workbench import Workbench
from engine.workbench.embedding_slot import Embedded, Work
from pages.parts.notice import notice

REFRESH_S = 0.4
AT_ONCE_S = 0.3


def vectors(bench: Workbench, texts: tuple[str, ...], spec: EmbedSpec, *, is_query: bool = False) -> Embedded | None:
    """The vectors once they are there; until then what is being done, or why there are none."""
    try:
        work = bench.embedding.embed(texts, spec, is_query=is_query)
    except EngineError as error:
        notice(error)
        return None
    key = "query" if is_query else "texts"
    if not work.wait(AT_ONCE_S):
        _follow(work)
        st.button("Stop", key=f"embed_stop_{key}", icon=":material/stop:", on_click=work.stop)
        return None
    if work.found is not None:
        return work.found
    if work.error is not None:
        notice(work.error)
    else:
        st.caption("Stopped before the vectors were there.")
    st.button("Try again", key=f"embed_again_{key}", on_click=bench.embedding.forget, args=(work,))
    return None


@st.fragment(run_every=REFRESH_S)
def _follow(work: Work) -> None:
    if work.done():
        st.rerun()
    if work.stage == "loading":
        st.progress(0.0, "Loading the embedding model and its libraries, some seconds")
    else:
        st.progress(work.share, f"Embedding {counted(len(work.texts), 'text')}")
