"""Strip of recent trials: opens any of them, deletes with undo."""

from collections.abc import Sequence
from functools import partial

import streamlit as st

from engine.errors import EngineError
from engine.history import TrialLabel, TrialSummary
from engine.workbench import Workbench
from engine.workbench.trials import Trial
from pages.parts import prompt_state
from pages.parts.notice import attempt, notice, undo_row
from pages.parts.plain import plain
from pages.parts.units import moment

SHOWN = 10
TITLE_WIDTH = 26
DELETED = "lab_deleted"
LIKE_HELP = "Lists the trials in the history by how similar their answers are in meaning to this one"
WHY: dict[str, str] = {
    TrialLabel.STEP: "stepped",
    TrialLabel.CONTINUE: "continued",
    TrialLabel.REGENERATE: "regenerated",
    TrialLabel.BRANCH: "branched",
    TrialLabel.SAMPLE: "sampled",
    TrialLabel.SCORE: "scored",
    TrialLabel.BEAMS: "beam search",
    TrialLabel.RECORDED: "recorded",
    TrialLabel.API: "by another program",
}


def show(bench: Workbench, trial: Trial | None) -> None:
    """Draw the strip and the Undo of the last deletion."""
    try:
        recent = bench.trials.recent(SHOWN)
    except EngineError as error:
        notice(error)
        recent = []
    if recent:
        st.caption("Recent trials")
        with st.container(horizontal=True, gap="xsmall", key="lab_recent"):
            for one in recent:
                is_shown = trial is not None and trial.id == one.id
                st.button(
                    _label(one), key=f"open_{one.id}", type="secondary" if is_shown else "tertiary", on_click=_open,
                    args=(bench, one.id),
                )  # fmt: skip
    deleted = st.session_state.get(DELETED)
    if deleted:
        subject = "The trial was" if len(deleted) == 1 else f"{len(deleted)} trials were"
        undo_row(f"{subject} deleted.", "lab_undo", partial(_undo, bench))


def actions(bench: Workbench, trial: Trial) -> None:
    """Draw buttons that find trials like an ended one and delete it; call inside a row."""
    if (
        bench.history is not None
        and trial.label != TrialLabel.RECORDED
        and trial.draft.is_kept
        and trial.steps.text.strip()
    ):
        asked = {"view": "trials", "like": trial.id}
        if st.button("Find similar", icon=":material/join_inner:", type="tertiary", key="lab_like", help=LIKE_HELP):
            st.switch_page("history.py", query_params=asked)
    if trial.label != TrialLabel.RECORDED:
        st.button(
            "Delete", icon=":material/delete:", type="tertiary", key="lab_delete", on_click=attempt,
            args=(prompt_state.ERROR, partial(delete, bench, (trial.id,))),
        )  # fmt: skip


def _label(one: TrialSummary) -> str:
    """Return the prompt and, in grey, the beginning of the answer, its length, its origin, and the time."""
    title = plain(one.title, TITLE_WIDTH) or "(empty)"
    facts = [f"{one.num_generated:,} tok" if one.num_generated else "", WHY.get(one.label, ""), moment(one.created_at)]
    grey = [plain(one.output_start.strip(), TITLE_WIDTH), *facts]
    return f"{title} :gray[{' · '.join(fact for fact in grey if fact)}]"


def _open(bench: Workbench, trial_id: str) -> None:
    attempt(prompt_state.ERROR, lambda: prompt_state.put_on_screen(bench.trials.trial(trial_id)))


def delete(bench: Workbench, trial_ids: Sequence[str]) -> None:
    """Delete trials, those that run after stopping them; Undo restores them all. Raises EngineError."""
    shown = st.session_state[prompt_state.TRIAL]
    parent = bench.trials.trial(shown).parent if shown in trial_ids else None
    for trial_id in trial_ids:
        bench.trials.stop(bench.trials.trial(trial_id))
        bench.trials.delete(trial_id)
    st.session_state[DELETED] = tuple(trial_ids)
    if shown in trial_ids:
        other = (
            parent if parent not in trial_ids and parent and bench.trials.watch(parent) else bench.trials.newest_id()
        )
        prompt_state.show(bench.trials.trial(other) if other else None)


def _undo(bench: Workbench) -> None:
    def restore() -> None:
        trial_ids = st.session_state.pop(DELETED, ())
        for trial_id in trial_ids:
            bench.trials.restore(trial_id)
        if trial_ids:
            prompt_state.show(bench.trials.trial(trial_ids[0]))

    attempt(prompt_state.ERROR, restore)
