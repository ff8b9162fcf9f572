"""Branches of the trial on the screen: the tree of its family, with what a reader does with it."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import streamlit as st

from engine.comparing.branch_tree import Branch, TokenPath, branches_of
from engine.errors import ConfigError, EngineError
from engine.history.marks import Marks
from engine.units import counted, percent, significant
from engine.workbench import Workbench
from engine.workbench.branching import Relative
from engine.workbench.trials import Trial
from pages.parts import prompt_state, recent
from pages.parts.notice import attempt, notice
from pages.parts.plain import visible
from pages.parts.token_strip import Branches, BranchRow

HEADS = (
    ("label", "branch"), ("number", "p"), ("number", "trials"), ("number extra", "tokens"),
    ("number extra", "bits/token"),
)  # fmt: skip
HELP = (
    "p: the model's probability of the branch's first token. bits/token: mean surprise of its tokens. Dotted: a forced "
    "token. Click a row to open its trial; s stars it, F2 names it, Delete deletes it and all below."
)
TEXT_WIDTH, NAME_WIDTH = 160, 100
LIVE_S = 0.5

Key = Annotated[str, msgspec.Meta(max_length=80)]


class Open(msgspec.Struct, tag_field="action", tag="open", forbid_unknown_fields=True, frozen=True):
    """Open a row: the trial that ends with it, or its tokens as a branch."""

    key: Key


class Star(msgspec.Struct, tag_field="action", tag="star", forbid_unknown_fields=True, frozen=True):
    """Star the trial that ends with a row, or remove its star."""

    key: Key
    is_starred: bool


class Name(msgspec.Struct, tag_field="action", tag="name", forbid_unknown_fields=True, frozen=True):
    """Name the trial that ends with a row."""

    key: Key
    name: Annotated[str, msgspec.Meta(max_length=100)]


class Delete(msgspec.Struct, tag_field="action", tag="delete", forbid_unknown_fields=True, frozen=True):
    """Delete all trials that go through a row."""

    key: Key


Action = Open | Star | Name | Delete


def family_of(bench: Workbench, trial: Trial | None) -> Sequence[Relative]:
    """Return the family of a trial, the oldest first; empty if it cannot be read, and the reason is shown."""
    if trial is None or not trial.prompt_ids:
        return []
    try:
        return bench.branching.family(trial)
    except EngineError as error:
        notice(error)
        return []


def tree(bench: Workbench, trial: Trial | None, family: Sequence[Relative]) -> Branches | None:
    """Return the tree of its family for the strip where the trial has relatives, else None."""
    if trial is None or len(family) < 2:
        return None
    running = frozenset(one.id for one in family if one.is_running and one.id != trial.id)
    if running:
        _await_end(bench, running)
    return Branches(
        title=f"Branches · {counted(len(family), 'trial')}", note="", help=HELP, heads=HEADS, rows=rows(trial, family),
        can_mark=bench.history is not None,
    )  # fmt: skip


@st.fragment(run_every=LIVE_S)
def _await_end(bench: Workbench, running: frozenset[str]) -> None:
    """Rerun the page once another of these trials has ended."""
    if any(one.done() for one in bench.trials.in_memory() if one.id in running):
        st.rerun()


def rows(trial: Trial, family: Sequence[Relative]) -> list[BranchRow]:
    """Return a row for each branch of the family; the texts come from the trial's vocabulary."""
    paths = {one.id: one.path for one in family}
    relatives = {one.id: one for one in family}
    branches = branches_of(paths.values())
    return [_row(trial, one, paths[one.trial_id], [relatives[id] for id in one.ends], relatives) for one in branches]


def share(p: float) -> str:
    """Return a probability as a percentage with two significant digits, "100 %" for 1."""
    return percent(p) if p >= 0.1 else f"{significant(100 * p)} %"


def _row(
    trial: Trial, branch: Branch, path: TokenPath, ends: Sequence[Relative], relatives: dict[str, Relative]
) -> BranchRow:
    shown = path.ids[branch.start : min(branch.end, branch.start + TEXT_WIDTH)].tolist()
    text = visible(trial.steps.vocabulary.texts(shown)[:TEXT_WIDTH])
    p, num = ("" if branch.p is None else share(branch.p)), len(branch.trials)
    bits = "" if branch.surprise_bits is None else significant(branch.surprise_bits)
    name = next((one.name.splitlines()[0][:NAME_WIDTH] for one in ends if one.name), "")
    return BranchRow(
        key=_key(branch),
        parent=branch.parent,
        depth=branch.depth,
        text=text,
        cells=(p, f"{num:,}", f"{branch.end - branch.start:,}", bits),
        name=visible(name),
        is_starred=any(one.is_starred for one in ends),
        is_forced=branch.is_forced,
        is_running=any(relatives[id].is_running for id in branch.ends),
        is_open=trial.id in branch.ends,
        is_passed=trial.id in branch.trials,
        ends=bool(ends),
        num_trials=num,
    )


def action_of(asked: object, actions: Any) -> Any:
    """Return what a reader does with a row of a tree, as one of these actions. Raises ConfigError for anything else."""
    try:
        return msgspec.convert(asked, actions)
    except msgspec.ValidationError as error:
        raise ConfigError(f"The tree asked for something that cannot be done: {error}. Reload the page.") from error


def act(bench: Workbench, trial: Trial, asked: object) -> None:
    """Carry out what a reader does with a row; call in a callback. Errors are shown below the buttons."""
    attempt(prompt_state.ERROR, lambda: _act(bench, trial, asked))


def _act(bench: Workbench, trial: Trial, asked: object) -> None:
    action: Action = action_of(asked, Action)
    branch = _branch_of(bench, trial, action.key)
    end = branch.ends[-1] if branch.ends else branch.trials[-1]
    match action:
        case Open():
            prompt_state.put_on_screen(bench.trials.trial(end))
        case Star(is_starred=is_starred):
            _marks(bench).star("trial", [end], is_starred)
        case Name(name=name):
            _marks(bench).note("trial", end, name.strip())
        case Delete():
            recent.delete(bench, branch.trials)


def _branch_of(bench: Workbench, trial: Trial, key: str) -> Branch:
    """Return the branch of a row. Raises ConfigError where it is gone."""
    family = bench.branching.family(trial)
    found = next((one for one in branches_of(one.path for one in family) if _key(one) == key), None)
    if found is None:
        raise ConfigError("This branch has changed since it was drawn. Try again.")
    return found


def _key(branch: Branch) -> str:
    return f"{branch.trial_id}:{branch.start}"


def _marks(bench: Workbench) -> Marks:
    if bench.history is None:
        raise ConfigError("The history cannot be used at present, so this cannot be saved.")
    return bench.history.marks
