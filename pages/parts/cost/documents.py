"""Real documents: a folder or files, counted with the loaded model's own tokenizer and used as the job."""

import math
from typing import NamedTuple

import streamlit as st

from engine.cost import CostJob, Counted
from engine.errors import EngineError
from engine.tasks import Task
from engine.units import counted, digits
from engine.workbench import Workbench, costing
from pages.parts import task_progress
from pages.parts.benchmark.charts import draw
from pages.parts.cost import asked, charts
from pages.parts.notice import notice
from pages.parts.plain import plain

FOLDER, FILES, COUNTING, FOUND = "cost_folder", "cost_files", "cost_counting", "cost_found"
AT_ONCE_S = 1.0
MOST_UPLOADED_MB = 8


class Found(NamedTuple):
    """The last count, and the name of the model whose tokenizer was used."""

    counted: Counted
    model: str

    @property
    def job(self) -> dict[str, float]:
        """The job made of these documents."""
        number = len(self.counted.documents)
        return {"documents": number, "tokens_per_document": self.counted.num_tokens / number}


def origin(job: CostJob) -> str:
    """Return the origin of the job's tokens if they are those last counted; else an empty string."""
    found: Found | None = st.session_state.get(FOUND)
    if found is None or not found.counted.documents:
        return ""
    is_same = all(math.isclose(getattr(job, name), value, rel_tol=1e-9) for name, value in found.job.items())
    return f"tokens of {counted(job.documents, 'document')}, by {found.model}'s tokenizer" if is_same else ""


def show(bench: Workbench) -> None:
    """Draw the inputs for documents, the button that counts them, and the result."""
    with st.expander("Count real documents", key="cost_documents_real"):
        st.text_input("Folder", key=FOLDER, placeholder="/home/me/documents", persist_state="session")
        st.file_uploader(
            "Or files", key=FILES, accept_multiple_files=True, max_upload_size=MOST_UPLOADED_MB,
        )  # fmt: skip
        folder, files = st.session_state[FOLDER].strip(), st.session_state[FILES]
        if st.button("Count", key="cost_count", icon=":material/calculate:", disabled=not folder and not files):
            documents = [(file.name, file.getvalue()) for file in files] if files else folder
            try:
                model = bench.model.loaded()[1].name
                st.session_state[COUNTING] = costing.start_counting(bench, documents), model
            except EngineError as error:
                notice(error)
        if COUNTING in st.session_state:
            _counting(*st.session_state[COUNTING])
        if FOUND in st.session_state:
            _found(st.session_state[FOUND])


def _counting(task: Task[Counted], model: str) -> None:
    """Show the progress of the count, then keep its result or say why there is none."""
    if not task_progress.has_ended(task, "cost_count_stop", AT_ONCE_S):
        return
    del st.session_state[COUNTING]
    if task.state == "done":
        st.session_state[FOUND] = Found(task.result(), model)
    elif task.state == "stopped":
        st.caption("Stopped before all files were counted.")
    elif task.error is not None:
        notice(task.error)


def _found(found: Found) -> None:
    documents, skipped = found.counted.documents, found.counted.skipped
    if documents:
        draw(charts.lengths(found.counted), "cost_lengths")
        per_word = found.counted.num_tokens / max(found.counted.num_words, 1)
        all_tokens = counted(found.counted.num_tokens, "token")
        summary = f"{all_tokens} in total, {digits(per_word)} per word, by {found.model}'s tokenizer."
        st.caption(plain(summary))
        st.button("Use as the job", key="cost_take", icon=":material/check:", on_click=asked.ask, kwargs=found.job)
    else:
        st.caption("No document could be counted.")
    if not found.counted.is_complete:
        st.caption("There are more documents than can be counted at once; only the first are counted.")
    if skipped:
        st.caption(f"{counted(len(skipped), 'file')} skipped")
        st.dataframe(
            [{"file": one.name, "reason": one.reason} for one in skipped], hide_index=True, key="cost_skipped",
            alt="Files that were not counted",
        )  # fmt: skip
