"""Semantic search of trials: the switch with its cost, indexing progress, and the list by similarity."""

from dataclasses import replace

import streamlit as st

from engine.embedding.models import EMBEDDED_NAME
from engine.errors import EngineError
from engine.history import History
from engine.history.filters import Filter
from engine.history.search import Found
from engine.history.vectors import Part, Read
from engine.step_parts import Floats
from engine.units import counted, duration
from engine.workbench import Workbench
from engine.workbench.semantic_index import SPEC
from pages.parts import task_progress
from pages.parts.embeddings import waiting
from pages.parts.history import tables, view
from pages.parts.history.listing import Listing
from pages.parts.history.tables import Column
from pages.parts.notice import notice
from pages.parts.plain import plain
from pages.parts.units import size

KEY, BY, LIKE, MEANING = "history_by", "by", "like", "meaning"
CHOICES = {"": "Search by words", MEANING: "by meaning"}
CALLED = {"prompt": "prompt", "output": "answer"}
ORDERS = {"-similarity": "Most similar first"}
COLUMNS = {
    "similarity": Column("similarity", None, "cosine of the vectors: 1.00 same meaning, about 0 unrelated"),
    "matched": Column("matched", None, "whichever of the two is more similar"),
    **tables.TRIAL,
}
REFRESH_S = 1.0
TITLED = 90


def is_asked() -> bool:
    """Return True if the URL selects trials by meaning, or trials similar to one of them."""
    return bool(view.part(LIKE)) or view.part(BY) == MEANING


def control() -> None:
    """Draw the choice of the search box's mode: by words or by meaning."""
    st.session_state[KEY] = view.part(BY) if view.part(BY) in CHOICES else ""
    st.segmented_control(
        "Search by", CHOICES, format_func=CHOICES.__getitem__, key=KEY, required=True, label_visibility="collapsed",
        on_change=lambda: view.put(**{BY: st.session_state[KEY], LIKE: "", "order": "", "page": ""}),
        help="Words are found as they are; meaning finds texts that say something similar in any words.",
    )  # fmt: skip


def listing(bench: Workbench, history: History, wanted: Filter, usual: Listing) -> Listing | None:
    """Return the list that the URL selects: the usual one without a search, None while there is none yet.

    Draws above it the cost of search by meaning, or its indexing progress.
    """
    is_read = _standing(bench, history)
    if not wanted.text and not view.part(LIKE):
        return usual
    if not is_read:
        _not_yet()
        return None
    if view.part(LIKE):
        return _like(history, view.part(LIKE))
    question = waiting.vectors(bench, (wanted.text,), SPEC, is_query=True)
    return None if question is None else _by(history, question.vectors[0])


def like_button(trial_id: str) -> None:
    """Draw a button that opens the list of answers similar to this trial's, on the History page."""
    st.button(
        "Find similar", icon=":material/join_inner:", key="history_do_like",
        help="Trials by how similar in meaning their answers are to this one.",
        on_click=lambda: view.put(**{LIKE: trial_id, BY: "", "text": "", "order": "", "page": ""}),
    )  # fmt: skip


def _by(history: History, vector: Floats, part: Part | None = None) -> Listing:
    """Return the list of trials by similarity to a vector: of the query in the search box, or of an answer."""

    def find(wanted: Filter, *, limit: int, offset: int, order: str, is_descending: bool) -> Found:
        narrowed = replace(wanted, text="") if part is None else wanted
        found = history.vectors.nearest(vector, narrowed, part=part, limit=limit, offset=offset)
        return found._replace(
            rows=[{**row, "matched": CALLED[row["matched"]] if part is None else None} for row in found.rows]
        )

    return Listing("trial", find, COLUMNS, ORDERS, "title")


def _like(history: History, trial_id: str) -> Listing | None:
    vector = history.vectors.of_outputs([trial_id]).get(trial_id)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if vector is None:
            st.caption("The answer of this trial is not indexed yet, or it has none.", width="content")
        else:
            st.caption(f"Similar to: {_title(history, trial_id)}", width="content")
        _all_trials()
    return None if vector is None else _by(history, vector, "output")


def _not_yet() -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption("Search by meaning works once the texts are indexed; until then, search by words.", width="content")
        if view.part(LIKE):
            _all_trials()


def _all_trials() -> None:
    st.button("All trials", type="tertiary", key="history_unlike", on_click=lambda: view.put(**{LIKE: ""}))


def _title(history: History, trial_id: str) -> str:
    """Return the beginning of the answer."""
    return "".join(plain(one.text.strip(), TITLED) for one in history.comparisons.outcomes([trial_id]))


# The switch and the indexing behind it.


def _standing(bench: Workbench, history: History) -> bool:
    """Draw the state of search by meaning; return False while no text is indexed."""
    meaning = bench.meaning
    try:
        if meaning.error is not None:
            notice(meaning.error)
        model = history.vectors.model
        if model is None:
            _offer(bench, "Index them")
            return False
        read = history.vectors.num_read(model.hash)
        if meaning.reading is not None:
            _follow(bench)
        elif meaning.is_stopped:
            _offer(bench, "Continue")
        else:
            _caption(bench, read)
            return True
    except EngineError as error:
        notice(error)
        return False
    return read.num_texts > 0


def _offer(bench: Workbench, label: str) -> None:
    """Draw the cost of indexing the remaining texts, and the button that starts it."""
    cost = bench.meaning.cost()
    message = "No prompt or answer to index yet; each is indexed as it finishes."
    if cost.num_texts:
        left = f"about {duration(max(cost.seconds, 1.0))} in the background, {size(cost.num_bytes)} of disk"
        message = f"{counted(cost.num_texts, 'text')} of prompts and answers to index: {left}; new ones as they finish."
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(message, width="content")
        st.button(
            label, icon=":material/play_arrow:", key="history_read", on_click=view.act, args=(bench.meaning.turn_on,),
            help=f"Embeds each with {EMBEDDED_NAME}, trained on English. Nothing leaves this machine.",
        )  # fmt: skip


@st.fragment(run_every=REFRESH_S)
def _follow(bench: Workbench) -> None:
    """Draw the progress of indexing; the page is redrawn at its end."""
    reading = bench.meaning.reading
    if reading is None:
        st.rerun()
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.progress(reading.share, plain(task_progress.line(reading, "Indexing")))
        st.button("Stop", type="tertiary", icon=":material/stop:", key="history_stop", on_click=bench.meaning.stop)


def _caption(bench: Workbench, read: Read) -> None:
    """Draw what is indexed, how many texts were truncated, and the button that turns the search off."""
    message = f"{counted(read.num_texts, 'text')} indexed with {EMBEDDED_NAME}"
    if read.num_cut:
        message += f", {read.num_cut:,} of them truncated to the longest text that the model takes"
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(message, width="stretch")
        st.button(
            "Turn off", type="tertiary", key="history_forget", on_click=view.act, args=(bench.meaning.turn_off,),
            help="Removes the vectors, not the trials; they can be indexed again.",
        )  # fmt: skip
