"""Embedding in progress: the model's loading, the progress, Stop, and errors."""

import streamlit as st

from engine.embedding.specs import EmbedSpec
from engine.errors import EngineError, sentence
from engine.workbench import Workbench
from engine.workbench.embedding_manager import Embedded
from engine.workbench.machine_lease import MachineBusy
from pages.parts import task_progress
from pages.parts.notice import notice
from pages.parts.plain import plain

AT_ONCE_S = 0.3


def vectors(bench: Workbench, texts: tuple[str, ...], spec: EmbedSpec, *, is_query: bool = False) -> Embedded | None:
    """Return the vectors once they are ready; until then show the progress, or why there are none."""
    try:
        task = bench.embedding.embed(texts, spec, is_query=is_query)
    except MachineBusy as error:
        st.info(plain(sentence(error)), icon=":material/hourglass_empty:")
        return None
    except EngineError as error:
        notice(error)
        return None
    key = "query" if is_query else "texts"
    if not task_progress.has_ended(task, f"embed_stop_{key}", AT_ONCE_S):
        return None
    if task.state == "done":
        return task.result()
    if task.state == "stopped":
        st.caption("Stopped before the vectors were there.")
    elif task.error is not None:
        notice(task.error)
    st.button("Try again", key=f"embed_again_{key}", on_click=bench.embedding.forget, args=(task,))
    return None
