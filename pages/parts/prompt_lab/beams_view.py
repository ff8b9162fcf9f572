"""Beam search of the trial on the screen: its sequences by score, and all beams as a tree."""

import math
from collections.abc import Sequence

import numpy as np
import streamlit as st

from engine.comparing.beams import MOST_NEW_TOKENS, Beams, BeamSequence
from engine.comparing.branch_tree import Branch, TokenPath, branches_of
from engine.errors import ConfigError, EngineError
from engine.units import counted
from engine.vocabulary import Vocabulary
from engine.workbench import Workbench
from engine.workbench.trials import Trial
from pages.parts import prompt_state
from pages.parts.branches import Open, action_of, share
from pages.parts.labels import token_text
from pages.parts.notice import attempt, notice
from pages.parts.plain import visible
from pages.parts.token_strip import Branches, BranchRow, RowToken

PRUNED = "pruned"
MOST_PRUNED = 100
SEQUENCE_HEADS = (
    ("label", "sequence"), ("number", "score"), ("number", "logprob, nats"), ("number", "tokens"),
)  # fmt: skip
TREE_HEADS = (("label", "beam"), ("number", "p"), ("number", "logprob, nats"), ("number", "tokens"))
SEQUENCE_HELP = (
    "logprob: of all tokens together. score: logprob / tokens ** length_penalty. Click a sequence to open it as a "
    "branch of this trial."
)
TREE_HELP = (
    "p: the model's probability of the first token, given the text before it. logprob: of all tokens from the prompt "
    "to the end of the row. Grey: pruned beams. Click a row to open its text as a branch of this trial."
)
MOST_TOKENS = 160
"""Tokens that a row of the tree shows."""


def trees(bench: Workbench, trial: Trial | None) -> tuple[Branches, Branches] | None:
    """Return the sequences and the tree of the beam search from which the trial on the screen comes, else None."""
    source = _source(bench, trial)
    if source is None or trial is None or source.beams is None:
        return None
    beams = source.beams
    return _sequences(trial, beams), _tree(trial, beams, _shown(beams))


def pruned_toggle(bench: Workbench, trial: Trial | None) -> None:
    """Draw the switch that shows the pruned beams in the tree; nothing for a trial of another kind."""
    source = _source(bench, trial)
    if source is not None and source.beams is not None and source.beams.num_pruned:
        num = source.beams.num_pruned
        most = f", the {MOST_PRUNED} most probable" if num > MOST_PRUNED else ""
        st.toggle(
            f"Show pruned beams ({num:,}{most})", key="lab_pruned", value=PRUNED in st.query_params,
            on_change=_toggle,
        )  # fmt: skip


def _toggle() -> None:
    if st.session_state["lab_pruned"]:
        st.query_params[PRUNED] = "1"
    else:
        st.query_params.pop(PRUNED, None)


def _source(bench: Workbench, trial: Trial | None) -> Trial | None:
    """Return the trial of the beam search: the one on the screen, or that from which it branches."""
    if trial is None or trial.beams is not None or trial.parent is None:
        return trial
    try:
        parent = bench.trials.watch(trial.parent)
    except EngineError as error:
        notice(error)
        return None
    return parent if parent is not None and parent.beams is not None else None


def _shown(beams: Beams) -> list[BeamSequence]:
    """Return the sequences in the tree: those that are returned, then the pruned beams where they are asked for."""
    return [*beams.sequences, *(beams.pruned(MOST_PRUNED) if PRUNED in st.query_params else ())]


def _sequences(trial: Trial, beams: Beams) -> Branches:
    spec = beams.spec
    note = (
        f"num_beams {spec.num_beams} · length_penalty {spec.length_penalty:g} · early_stopping {spec.early_stopping} · "
        f"max_new_tokens {spec.max_new_tokens:,} · {counted(beams.num_computed, 'token')} computed, at least "
        f"{beams.num_least:,} needed"
    )
    rows = [
        _row(
            trial, f"sequence:{number}", one, slice(0, len(one.ids)), MOST_NEW_TOKENS, name=f"#{number + 1}",
            is_passed=True,
            cells=(f"{one.score or 0.0:.3f}", f"{one.logprob:.3f}", f"{len(one.ids):,}"),
        )
        for number, one in enumerate(beams.sequences)
    ]  # fmt: skip
    title = f"Beam search · {counted(len(beams.sequences), 'sequence')}"
    return Branches(
        title=title, note=note, help=SEQUENCE_HELP, heads=SEQUENCE_HEADS, rows=rows, can_mark=False, kind="sequences"
    )


def _tree(trial: Trial, beams: Beams, shown: Sequence[BeamSequence]) -> Branches:
    num_returned, rows = len(beams.sequences), list[BranchRow]()
    for branch in _branches(shown):
        one = shown[int(branch.trial_id)]
        returned = [int(id) for id in branch.trials if int(id) < num_returned]
        ends = [f"#{int(id) + 1}" for id in branch.ends if int(id) < num_returned]
        total = math.fsum(one.logprobs[: branch.end])
        rows.append(
            _row(
                trial, _key(branch), one, slice(branch.start, branch.end), MOST_TOKENS, parent=branch.parent,
                depth=branch.depth, name=" ".join(ends), is_passed=bool(returned),
                cells=(share(branch.p or 0.0), f"{total:.3f}", f"{branch.end - branch.start:,}"),
            )
        )  # fmt: skip
    num_pruned = len(shown) - num_returned
    title = f"Beams · {counted(num_returned, 'sequence')}" + (f", {num_pruned:,} pruned" if num_pruned else "")
    return Branches(title=title, note="", help=TREE_HELP, heads=TREE_HEADS, rows=rows, can_mark=False, kind="beams")


def _branches(shown: Sequence[BeamSequence]) -> list[Branch]:
    return branches_of(
        TokenPath(str(number), np.array(one.ids, np.int32), np.array(one.logprobs), np.zeros(len(one.ids), np.bool_))
        for number, one in enumerate(shown)
    )


def _key(branch: Branch) -> str:
    return f"beam:{branch.trial_id}:{branch.start}"


def _row(
    trial: Trial,
    key: str,
    one: BeamSequence,
    here: slice,
    most: int,
    *,
    cells: tuple[str, ...],
    name: str,
    is_passed: bool,
    parent: int | None = None,
    depth: int = 0,
) -> BranchRow:
    tokens = _tokens(trial.steps.vocabulary, one, here, most)
    ids = tuple(trial.steps.ids)
    return BranchRow(
        key=key, parent=parent, depth=depth, text="".join(token["text"] for token in tokens), cells=cells, name=name,
        is_starred=False, is_forced=False, is_running=False, is_open=ids == one.ids[: here.stop], is_passed=is_passed,
        ends=False, num_trials=1, tokens=tokens,
    )  # fmt: skip


def _tokens(vocabulary: Vocabulary, one: BeamSequence, here: slice, most: int) -> list[RowToken]:
    """Return at most `most` tokens of a row, then how many more it has."""
    shown = list(zip(one.ids[here], one.logprobs[here], strict=True))
    tokens = [
        RowToken(
            text=visible(vocabulary.text(id)),
            title=f"{token_text(vocabulary.text(id))}: p {share(math.exp(logprob))}, {logprob:.3f} nats",
        )
        for id, logprob in shown[:most]
    ]
    if len(shown) > most:
        rest = f" … {counted(len(shown) - most, 'more token')}"
        tokens.append(RowToken(text=rest, title="Click the row to open all of its text."))
    return tokens


def act(bench: Workbench, trial: Trial, asked: object) -> None:
    """Open the tokens of the row that a reader clicked as a branch; call in a callback."""
    attempt(prompt_state.ERROR, lambda: _act(bench, trial, asked))


def _act(bench: Workbench, trial: Trial, asked: object) -> None:
    key = action_of(asked, Open).key
    source = _source(bench, trial)
    ids = _ids_of(source.beams, key) if source is not None and source.beams is not None else None
    if source is None or ids is None:
        raise ConfigError("This beam is not on the screen any more. Try again.")
    family = bench.branching.family(source)
    found = next((one.id for one in family if tuple(one.path.ids.tolist()) == ids), None)
    prompt_state.show(bench.trials.trial(found) if found else bench.trials.branch(source, 0, ids, num_tokens=0))


def _ids_of(beams: Beams, key: str) -> tuple[int, ...] | None:
    """Return the tokens up to the end of a row, None where there is no such row."""
    for number, one in enumerate(beams.sequences):
        if key == f"sequence:{number}":
            return one.ids
    shown = _shown(beams)
    branch = next((one for one in _branches(shown) if _key(one) == key), None)
    return None if branch is None else shown[int(branch.trial_id)].ids[: branch.end]
