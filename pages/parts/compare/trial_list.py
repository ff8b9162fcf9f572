"""List of saved comparisons: opens any of them, renames, deletes with undo."""

from functools import partial

import streamlit as st

from engine.comparing.arms import ComparisonRecord, ComparisonSummary
from engine.errors import EngineError
from engine.units import counted
from engine.workbench import Workbench
from pages.parts.compare import trial_state
from pages.parts.notice import notice, undo_row
from pages.parts.plain import plain
from pages.parts.units import moment

SHOWN = 10
TITLE_WIDTH = 32
NAME = "arms_name"


def show(bench: Workbench, record: ComparisonRecord | None, *, is_running: bool) -> None:
    """Draw the actions on the comparison on the screen, and the list."""
    if record is not None:
        _actions(bench, record, is_running=is_running)
    try:
        recent = bench.compare.recent(SHOWN)
    except EngineError as error:
        notice(error)
        recent = []
    if recent:
        st.caption("Recent comparisons")
        with st.container(horizontal=True, gap="xsmall", key="arms_recent"):
            for one in recent:
                is_shown = record is not None and record.id == one.id
                st.button(
                    _label(one), key=f"arms_open_{one.id}", type="secondary" if is_shown else "tertiary",
                    on_click=_open, args=(one.id,),
                )  # fmt: skip
    if st.session_state.get(trial_state.DELETED):
        message = "The comparison was deleted; its trials are still in the history."
        undo_row(message, "arms_undo", partial(_undo, bench))


def _actions(bench: Workbench, record: ComparisonRecord, *, is_running: bool) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if record.id:
            st.session_state[NAME] = record.name
            st.text_input(
                "Name", key=NAME, placeholder="Name this comparison", label_visibility="collapsed", width=240,
                on_change=_rename, args=(bench, record.id),
            )  # fmt: skip
            st.button(
                "Delete", icon=":material/delete:", type="tertiary", key="arms_delete", on_click=_delete,
                args=(bench, record.id), disabled=is_running,
            )  # fmt: skip
        else:
            ids = [answer.trial_id for answer in record.answers]
            st.button(
                "Save as comparison", icon=":material/bookmark:", key="arms_keep", on_click=_keep, args=(bench, ids)
            )
        st.button(
            "New comparison", icon=":material/add:", type="tertiary", key="arms_new", on_click=trial_state.begin_anew
        )


def _label(one: ComparisonSummary) -> str:
    """Return the name or the prompt and, in grey, the numbers of variants and trials, and the time."""
    title = plain(one.name or one.prompt.strip(), TITLE_WIDTH) or "(empty)"
    facts = [counted(one.num_arms, "variant"), counted(one.num_trials, "trial"), moment(one.created_at)]
    return f"{title} :gray[{' · '.join(facts)}]"


def _open(comparison_id: str) -> None:
    st.session_state[trial_state.ERROR] = None
    st.query_params.from_dict({"comparison": comparison_id})


def _keep(bench: Workbench, trial_ids: list[str]) -> None:
    trial_state.act(lambda: trial_state.show({"comparison": bench.compare.keep_trials(trial_ids)}))


def _rename(bench: Workbench, comparison_id: str) -> None:
    trial_state.act(lambda: bench.compare.rename(comparison_id, st.session_state[NAME]))


def _delete(bench: Workbench, comparison_id: str) -> None:
    def delete() -> None:
        bench.compare.delete(comparison_id)
        trial_state.show(None)
        st.session_state[trial_state.DELETED] = comparison_id

    trial_state.act(delete)


def _undo(bench: Workbench) -> None:
    def restore() -> None:
        comparison_id = st.session_state.pop(trial_state.DELETED, None)
        if comparison_id is not None:
            bench.compare.restore(comparison_id)
            _open(comparison_id)

    trial_state.act(restore)
