"""Lists of the latest trials, with the surprise of their tokens, and of the latest runs, with their answers."""

import streamlit as st

from engine.errors import EngineError
from engine.runs import RunSummary
from engine.units import counted, digits
from engine.workbench import Workbench
from engine.workbench.overview import RecentTrial, recent_trials
from pages.parts.job_tray import SWEEPS
from pages.parts.notice import notice
from pages.parts.overview.sparkline import sparkline
from pages.parts.plain import plain
from pages.parts.recent import WHY
from pages.parts.units import moment

SHOWN = 6
TITLE_WIDTH, ANSWER_WIDTH = 60, 90
SPARK_WIDTH, ROW_HEIGHT = 180, 40  # pixels
SAMPLE = (0.4, 1.2, 0.2, 3.1, 0.6, 5.4, 0.3, 0.9, 2.2, 0.1, 7.2, 0.8, 1.6, 0.4, 0.2, 2.8) * 3
"""Bits of the picture that stands where the first trial will be."""


def trials(bench: Workbench) -> None:
    """Draw the latest trials; without one, what to do."""
    st.subheader("Latest trials", anchor=False)
    try:
        found = recent_trials(bench, SHOWN)
    except EngineError as error:
        notice(error)
        return
    if not found:
        st.html(f'<div class="ov-ghost" aria-hidden="true">{sparkline(SAMPLE, 0)}</div>')
        st.caption("No trials yet. Each one shows here how surprising its tokens were.")
        st.page_link("prompt_lab.py", label="Run a prompt", icon=":material/play_arrow:")
    for one in found:
        _trial(one)


def runs(bench: Workbench) -> None:
    """Draw the latest runs; without one, what to do."""
    st.subheader("Latest runs", anchor=False)
    try:
        found = bench.history.runs.recent(SHOWN) if bench.history is not None else []
    except EngineError as error:
        notice(error)
        return
    if not found:
        st.caption("No benchmarks yet. Each one shows here its answer in a sentence.")
        st.page_link("benchmark.py", label="Ask how fast this machine is", icon=":material/speed:")
    for run in found:
        _run(run)


def _trial(one: RecentTrial) -> None:
    trial = one.summary
    rate = "" if trial.decode_per_s is None else f"{digits(trial.decode_per_s)} tok/s"
    surprise = "" if trial.mean_surprise_bits is None else f"{digits(trial.mean_surprise_bits)} bits/token"
    facts = (counted(trial.num_generated, "token"), rate, surprise, WHY.get(trial.label, ""), moment(trial.created_at))
    answer = plain(trial.output_start.strip(), ANSWER_WIDTH)
    with st.container(gap=None):
        with st.container(horizontal=True, vertical_alignment="center", gap="small", height=ROW_HEIGHT, border=False):
            st.page_link(
                "prompt_lab.py", label=plain(trial.title, TITLE_WIDTH) or "(empty)", query_params={"trial": trial.id},
                width="stretch",
            )  # fmt: skip
            st.html(sparkline(one.bits, trial.num_generated), width=SPARK_WIDTH)
        st.caption("  \n".join(line for line in (answer, _joined(*facts)) if line))


def _run(run: RunSummary) -> None:
    name = run.name or SWEEPS.get(run.question, run.question)
    status = "" if run.status == "done" else run.status
    with st.container(gap=None):
        st.page_link("benchmark.py", label=plain(name, TITLE_WIDTH), query_params={"run": run.id}, width="stretch")
        answer = plain(run.sentence) or "No answer yet."
        st.caption(f"{answer}  \n{_joined(run.model_name, status, moment(run.created_at))}")


def _joined(*facts: str) -> str:
    """Return a line of the facts that there are."""
    return plain(" · ".join(fact for fact in facts if fact))
