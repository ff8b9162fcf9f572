"""Replay of the trial on the screen: its progress, whether it is identical, and both distributions where it differs."""

import math
from functools import partial
from typing import Any

import streamlit as st

from engine.comparing.replay import Difference
from engine.workbench import Workbench
from engine.workbench.replays import Replayed
from engine.workbench.trials import Trial
from pages.parts import number_columns, prompt_state, task_progress
from pages.parts.labels import token_text
from pages.parts.notice import attempt, notice
from pages.parts.plain import plain

HELP = (
    "Runs the same token ids again with the same parameters and the seed that was used, computes every token, and "
    "compares each with the recorded one"
)
RECORDED, REPLAYED, PLACE = "recorded", "replayed", "drawn"
SHOWN = 12
"""Most probable candidates that are listed; those that were drawn are listed too."""


def button(bench: Workbench, trial: Trial) -> None:
    """Draw the button that replays an ended trial; call inside a row."""
    st.button(
        "Replay", icon=":material/replay:", type="tertiary", key="lab_replay", help=HELP,
        disabled=bench.replays.running is not None, on_click=attempt,
        args=(prompt_state.ERROR, partial(bench.replays.start, trial)),
    )  # fmt: skip


def show(bench: Workbench, trial: Trial) -> None:
    """Draw the last replay of the trial: its progress with Stop, its outcome, or why there is none."""
    task = bench.replays.of(trial.id)
    if task is None or not task_progress.has_ended(task, "lab_stop_replay", 0.0):
        return
    if task.state == "done":
        _outcome(task.result())
    elif task.state == "stopped":
        st.caption("The replay was stopped.")
    elif task.error is not None:
        notice(task.error)


def _outcome(found: Replayed) -> None:
    """Draw the outcome in a sentence, what was not repeated, and both distributions where a token differs."""
    icon = "check_circle" if found.replay.is_identical else "call_split"
    st.markdown(f":material/{icon}: **{plain(found.replay.sentence)}**")
    if found.remarks:
        st.caption(plain(" ".join(found.remarks)))
    if found.replay.difference is not None:
        _distributions(found.replay.difference)


def _distributions(found: Difference) -> None:
    """Draw both distributions beside each other, and the random numbers that fell on them."""
    recorded, replayed = found.recorded.draw, found.replayed and found.replayed.draw
    if recorded is not None and replayed is not None:
        st.caption(f"The random number was {recorded:.4f} as recorded and {replayed:.4f} in the replay.")
    table = columns(found)
    st.dataframe(
        table, hide_index=True, key="lab_replay_table", width=560, height="content",
        column_config=number_columns.formats(table, {}),
        alt=f"Candidates at token {found.position + 1:,} as recorded and as replayed",
    )  # fmt: skip


def columns(found: Difference) -> dict[str, list[Any]]:
    """Return the most probable candidates, as recorded and as replayed, in per cent, and which of them was drawn."""
    drawn_ids = {found.recorded.id, found.replayed.id if found.replayed else None}
    rows = [row for number, row in enumerate(found.logprobs) if number < SHOWN or row[0] in drawn_ids]
    drawn = {found.recorded.id: [RECORDED]}
    if found.replayed is not None:
        drawn.setdefault(found.replayed.id, []).append(REPLAYED)
    return {
        "candidate": [token_text(found.text(token)) for token, _, _ in rows],
        **number_columns.scaled("p recorded", "", [_p(recorded) for _, recorded, _ in rows]),
        **number_columns.scaled("p replayed", "", [_p(replayed) for _, _, replayed in rows]),
        PLACE: [" and ".join(drawn.get(token, [])) for token, _, _ in rows],
    }


def _p(logprob: float | None) -> float | None:
    return None if logprob is None else math.exp(logprob)
