"""Session state of the Benchmark page: the question, the run on the screen or None, and the buttons' actions."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import streamlit as st

from engine.bench.planning.plan import QUESTIONS, Plan, Question
from engine.bench.planning.remote import describe_prompts, describe_requests, sent_by
from engine.errors import ConfigError, EngineError
from engine.runs import RunRecord, RunSummary
from engine.workbench import Workbench
from pages.parts.notice import attempt
from pages.parts.plain import plain

QUESTION, RUN, ERROR, DELETED = "sweep_question", "sweep_run", "sweep_error", "sweep_deleted"
ASKING = "sweep_asking"
"""Session state key of what is sent to other machines once it is confirmed."""
VIEW = ("chart", "metric", "baseline", "columns")
"""Query parameters of a run's view, besides the run's id."""

RECENT = 10
Begin = Callable[[Collection[str]], str | None]
ASKED: Mapping[str, str] = {
    "speed": "How fast?",
    "settings": "Best settings?",
    "python": "What does Python cost?",
    "engines": "Which engine is fastest?",
    "users": "How many users?",
    "embedding": "How fast are embeddings?",
}


class Asking(NamedTuple):
    """A run that waits until what it sends to other machines is confirmed.

    requests_text: how much is sent where, in words; prompts: what it is, in words.
    """

    requests_text: str
    addresses: tuple[str, ...]
    prompts: str
    begin: Begin


def open_run(bench: Workbench) -> RunRecord | None:
    """Return the run on the screen: the one in the URL, else the one this tab showed last, else the newest.

    Returns None if the screen shows a question's plan instead, or if the run cannot be read; the reason is then in the
    session state.
    """
    state, address = st.session_state, st.query_params
    run_id, question = address.get("run"), address.get("question")
    if not run_id and not question:
        run_id = state[RUN] if RUN in state else bench.bench.newest_id()
        question = state.get(QUESTION)
    run = _found(bench, run_id) if run_id else None
    if run is not None:
        question = run.question
    state[QUESTION] = question if question in QUESTIONS else QUESTIONS[0]
    _remember(run.id if run else None, state[QUESTION])
    return run


def question_control(bench: Workbench) -> Question:
    """Draw the six questions; choosing one opens its newest run, or its plan if it has none."""
    question = st.segmented_control(
        "Question", QUESTIONS, format_func=ASKED.__getitem__, key=QUESTION, required=True, on_change=_choose,
        args=(bench,), label_visibility="collapsed", persist_state="session",
    )  # fmt: skip
    assert question is not None  # it is required
    return question


def _choose(bench: Workbench) -> None:
    _open_newest(bench, st.session_state[QUESTION])


def _open_newest(bench: Workbench, question: str) -> None:
    newest = [one.id for one in recent(bench) if one.question == question]
    show_run(newest[0]) if newest else show_plan(question)


def show_run(run_id: str) -> None:
    """Open a run; call in a callback."""
    st.session_state[ERROR] = None
    _remember(run_id, st.session_state.get(QUESTION, QUESTIONS[0]))


def show_plan(question: str) -> None:
    """Open the plan of a question; call in a callback."""
    st.session_state[ERROR] = None
    _remember(None, question)


def start(bench: Workbench, read: Callable[[], Plan]) -> None:
    """Start the plan that `read` returns and watch it; call in a callback. A failure is shown on the page."""

    def begin() -> None:
        plan = read()
        launch(bench, plan, lambda confirmed: bench.bench.start(plan, confirmed=confirmed))

    act(begin)


def launch(bench: Workbench, plan: Plan, begin: Begin) -> None:
    """Begin a run; where its plan sends prompts to other machines, ask first.

    `begin` gets the addresses that were confirmed, and returns the id of a run to show, None for one that begins later.
    Raises EngineError; call in `act`.
    """
    requests = bench.bench.preview(plan).remote
    if requests:
        requests_text = describe_requests(requests, sent_by(plan))
        st.session_state[ASKING] = Asking(requests_text, tuple(requests), describe_prompts(plan), begin)
    else:
        _begin(begin, ())


def _begin(begin: Begin, confirmed: Collection[str]) -> None:
    if (run_id := begin(confirmed)) is not None:
        show_run(run_id)


def asked() -> None:
    """Ask in a dialog whether prompts may be sent to other machines, while a run waits for it."""
    waiting: Asking | None = st.session_state.get(ASKING)
    if waiting is not None:
        _ask(waiting)


def _answered() -> None:
    st.session_state[ASKING] = None


@st.dialog("Send texts to another machine?", on_dismiss=_answered)
def _ask(waiting: Asking) -> None:
    st.markdown(plain(f"{waiting.requests_text} Send them?"))
    st.caption(plain(waiting.prompts))
    st.caption("A few more requests find out what the server is. Its owner may count or charge the tokens.")
    with st.container(horizontal=True, gap="small"):
        if st.button("Send them", type="primary", icon=":material/send:", key="remote_send"):
            _answered()
            act(lambda: _begin(waiting.begin, waiting.addresses))
            st.rerun()
        if st.button("Cancel", key="remote_cancel"):
            _answered()
            st.rerun()


def act(action: Callable[[], object]) -> None:
    """Run the action of a button; a failure is shown on the page."""
    attempt(ERROR, action)


def delete(bench: Workbench, run: RunRecord) -> None:
    """Delete a run and open the newest of its question; call in a callback."""

    def delete_it() -> None:
        bench.bench.delete(run.id)
        st.session_state[DELETED] = run.id
        _open_newest(bench, run.question)

    act(delete_it)


def undelete(bench: Workbench) -> None:
    """Undo the last deletion and open the restored run; call in a callback."""

    def restore() -> None:
        run_id = st.session_state.pop(DELETED, None)
        if run_id is not None:
            bench.bench.restore(run_id)
            show_run(run_id)

    act(restore)


def recent(bench: Workbench) -> list[RunSummary]:
    """Return the newest runs."""
    return _listed(bench.bench.recent)[:RECENT]


def interrupted(bench: Workbench) -> list[RunSummary]:
    """Return the runs that can be continued because the program ended before they did."""
    return _listed(bench.bench.interrupted)


def _listed(read: Callable[[], list[RunSummary]]) -> list[RunSummary]:
    """Return the runs; empty if the history cannot be read, with the reason in the session state."""
    try:
        return read()
    except EngineError as error:
        st.session_state[ERROR] = error.bare()
        return []


def _found(bench: Workbench, run_id: str) -> RunRecord | None:
    try:
        run = bench.bench.run(run_id)
        if run is None:
            raise ConfigError("The URL names a run that does not exist: it was deleted or never saved. Plan it again.")
    except EngineError as error:
        st.session_state[ERROR] = error.bare()
        return None
    return run


def _remember(run_id: str | None, question: str) -> None:
    """Store this as the tab's view and in its URL; the view parameters remain while the run is the same."""
    st.session_state[RUN] = run_id
    shown = st.query_params.to_dict()
    address = {"run": run_id} if run_id else {"question": question}
    if run_id and shown.get("run") == run_id:
        address |= {name: shown[name] for name in VIEW if name in shown}
    if shown != address:
        st.query_params.from_dict(address)
