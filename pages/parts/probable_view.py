"""Most probable continuations of the trial on the screen: progress of the search, and its tree."""

import math

import streamlit as st

from engine.comparing.branch_tree import Branch, branches_of
from engine.errors import ConfigError
from engine.units import counted
from engine.workbench import Workbench
from engine.workbench.probable_manager import Probable, ProbableTask
from engine.workbench.trials import Trial
from pages.parts import prompt_state, task_progress
from pages.parts.branches import Open, action_of, share
from pages.parts.notice import attempt, notice
from pages.parts.plain import visible
from pages.parts.token_strip import Branches, BranchRow

HEADS = (("label", "continuation"), ("number", "p"), ("number", "total p"), ("number extra", "tokens"))
HELP = (
    "p: the model's probability of the branch's first token, given the text before it. total p: of the whole "
    "continuation up to the end of the branch, from the token that was chosen. Click a row to go on from it."
)
TEXT_WIDTH = 160


def _task(bench: Workbench, trial: Trial | None) -> ProbableTask | None:
    """Return the search from a token of this trial, running or ended."""
    task = bench.probable.last
    return task if task is not None and trial is not None and task.trial_id == trial.id else None


def show(bench: Workbench, trial: Trial | None) -> None:
    """Draw the progress of a search with Stop, its error, or how to close its result."""
    task = _task(bench, trial)
    if task is None:
        return
    if task.is_running:
        task_progress.with_stop(task, "lab_stop_probable")
        return
    if task.state == "failed":
        notice(str(task.error))
    st.button(
        "Close the most probable continuations", icon=":material/close:", type="tertiary", key="lab_close_probable",
        on_click=bench.probable.dismiss,
    )  # fmt: skip


def tree(bench: Workbench, trial: Trial | None) -> Branches | None:
    """Return the tree of a search that has ended, else None."""
    task = _task(bench, trial)
    if task is None or trial is None or task.state != "done":
        return None
    found = task.result()
    return Branches(
        title=f"Most probable from token {task.step + 1:,} · {counted(len(found.found), 'continuation')}",
        note=_note(found), help=HELP, heads=HEADS, rows=_rows(trial, found), can_mark=False,
    )  # fmt: skip


def _note(found: Probable) -> str:
    """Return which continuations are not proved to be the most probable, and why; "" if all are."""
    unproved = sum(not one.is_exact for one in found.found)
    if not unproved:
        return ""
    reason = "The search reached its limit" if found.is_cut_short else "Only the most probable candidates are known"
    return f"{reason}: {counted(unproved, 'continuation')} of these may be less probable than others."


def _branches(found: Probable) -> list[Branch]:
    return branches_of(one.path(str(number)) for number, one in enumerate(found.found))


def _rows(trial: Trial, found: Probable) -> list[BranchRow]:
    branches, totals, rows = _branches(found), dict[int, float](), list[BranchRow]()
    for number, branch in enumerate(branches):
        before = 0.0 if branch.parent is None else totals[branch.parent]
        totals[number] = before + (branch.logprob or 0.0)
        ids = found.found[int(branch.trial_id)].ids[branch.start : branch.end]
        text = visible(trial.steps.vocabulary.texts(ids)[:TEXT_WIDTH])
        p, total = share(branch.p or 0.0), share(math.exp(totals[number]))
        rows.append(
            BranchRow(
                key=_key(branch), parent=branch.parent, depth=branch.depth, text=text,
                cells=(p, total, f"{len(ids):,}"), name="", is_starred=False, is_forced=False, is_running=False,
                is_open=False, is_passed=True, ends=False, num_trials=len(branch.trials),
            )
        )  # fmt: skip
    return rows


def _key(branch: Branch) -> str:
    return f"probable:{branch.trial_id}:{branch.start}"


def act(bench: Workbench, trial: Trial, asked: object) -> None:
    """Start a branch with the tokens of the row that a reader clicked; call in a callback."""
    attempt(prompt_state.ERROR, lambda: _act(bench, trial, asked))


def _act(bench: Workbench, trial: Trial, asked: object) -> None:
    key = action_of(asked, Open).key
    task = _task(bench, trial)
    found = task.result() if task is not None and task.state == "done" else None
    branch = next((one for one in _branches(found) if _key(one) == key), None) if found else None
    if task is None or found is None or branch is None:
        raise ConfigError("These continuations are gone: search for them again.")
    prompt_state.show(bench.trials.branch(trial, task.step, found.found[int(branch.trial_id)].ids[: branch.end]))
