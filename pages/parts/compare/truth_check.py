"""Truth check of an answer: its tokens by llama.cpp and by PyTorch from the same GGUF file, with the KL of each."""

from collections.abc import Mapping
from functools import partial

import plotly.graph_objects as go
import streamlit as st

from engine.comparing.model_diff import ModelDiff, kl_text
from engine.workbench import Workbench
from engine.workbench.model_diffs import Other
from engine.workbench.trials import Trial
from pages.parts import task_progress
from pages.parts.benchmark import charts
from pages.parts.benchmark.chart_pen import ACCENT, blank
from pages.parts.compare import trial_state
from pages.parts.notice import attempt, notice
from pages.parts.prompt_lab import diff_view

TITLE = "Truth check: llama.cpp and PyTorch"
DTYPE = "float32"
HELP = (
    "Computes the tokens of this answer by llama.cpp, with keys and values as the answer had them, f16 unless chosen, "
    "and by transformers in {dtype}, both from the model's own file, and compares their distributions. They are the "
    "same, up to rounding, for a file of 32-bit floats in float32, with keys and values in f32 and flash attention "
    "off. All else shows what the arithmetic and the types of the two change"
)


def show(bench: Workbench, answers: Mapping[str, Trial]) -> None:
    """Draw the choice of an answer, by its label, and its check; nothing where no answer is of a GGUF file here."""
    checked = {label: trial for label, trial in answers.items() if trial.engine is None and _is_gguf(trial)}
    if not checked:
        return
    with st.expander(TITLE, key="arms_truth"):
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
            label = st.selectbox("Answer", list(checked), key="arms_truth_answer", width=320)
            trial = checked[label]
            other = Other(settings=(("dtype", DTYPE),)) if trial.pool.dtype is None else Other()
            task = bench.diffs.of(trial.id, other)
            st.button(
                "Check" if task is None or task.is_running else "Check again", key="arms_truth_start",
                help=HELP.format(dtype=trial.pool.dtype or DTYPE), disabled=bench.diffs.running is not None,
                on_click=attempt, args=(trial_state.ERROR, partial(bench.diffs.start, trial, other)),
            )  # fmt: skip
        if task is None or not task_progress.has_ended(task, "arms_truth_stop", 0.0):
            return
        if task.state == "done":
            diff_view.figures(task.result())
            charts.draw(figure(task.result().diff), "arms_truth_kl")
        elif task.state == "stopped":
            st.caption("The check was stopped.")
        elif task.error is not None:
            notice(task.error)


def figure(diff: ModelDiff) -> go.Figure:
    """Return the KL divergence over the positions of the tokens."""
    largest = int(diff.kl.argmax())
    made = blank(f"KL per token: mean {kl_text(diff.kl_mean)} nats, largest at token {largest + 1:,}", "token")
    made.add_bar(
        x=list(range(1, len(diff.kl) + 1)), y=diff.kl.tolist(), marker_color=ACCENT, name="",
        hovertemplate="token %{x:,}: %{y:.3g} nats",
    )  # fmt: skip
    made.update_layout(showlegend=False, yaxis_title="KL, nats")
    return made


def _is_gguf(trial: Trial) -> bool:
    """Return whether the model is a file: transformers also runs folders, which llama.cpp does not."""
    return trial.model.path.lower().endswith(".gguf")
