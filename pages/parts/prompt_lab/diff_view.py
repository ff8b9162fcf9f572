"""Comparison of the trial on the screen with another model or setting: choice, progress, figures."""

import math
from functools import partial

import streamlit as st

from engine.comparing.model_diff import kl_text
from engine.models import ModelFile
from engine.models.details import readable
from engine.models.folder_specs import GGUF_ARCHITECTURES, is_by_transformers
from engine.specs import DTYPES, KV_TYPES, PoolSpec
from engine.units import significant
from engine.workbench import Workbench
from engine.workbench.model_diffs import Diffed, is_same
from engine.workbench.trials import Trial
from pages.parts import address, prompt_state, task_progress
from pages.parts.models import place
from pages.parts.notice import attempt, notice
from pages.parts.plain import plain
from pages.parts.prompt_lab import diff_address
from pages.parts.token_strip import Change, ChangeRow

LISTED, FIGURE_WIDTH = 50, 200
HELP = "Computes the tokens of this trial by another file, quantisation or KV type, and shows what that changes"
KL_HELP = (
    "Kullback–Leibler divergence of the other model from the trial's own at each token, over the whole vocabulary, "
    "given the same tokens before it"
)
CHANGE_HELP = "Largest difference of a token's log-probability between the two models, up or down"
FLIP_HELP = "First token before which the most probable token of the two models differs"
PERPLEXITY_HELP = "exp of the mean surprise of the compared tokens, in nats"


def button(trial: Trial) -> None:
    """Draw the button that opens the comparison; call inside a row."""
    st.button(
        "Compare with another model", icon=":material/difference:", type="tertiary", key="lab_diff", help=HELP,
        disabled=diff_address.MODEL in st.query_params, on_click=diff_address.open_for, args=(trial,),
    )  # fmt: skip


def change(of: diff_address.Asked | None) -> Change | None:
    """Return what a comparison says of each token, for the strip; None where there is no result."""
    task = of and of.task
    if task is None or task.state != "done":
        return None
    found = task.result()
    diff = found.diff
    rows = [
        ChangeRow(index=one.position, best=one.best, other_best=one.other_best) for one in diff.most_changed(LISTED)
    ]
    return Change(
        key=f"{task.trial.id} {task.other}",
        other=_name(found),
        is_prompt=diff.is_prompt,
        logprob=_finite(diff.steps.records["logprob"].tolist()),
        other_logprob=_finite(diff.other_steps.records["logprob"].tolist()),
        kl=_finite(diff.kl.tolist()),
        first_flip=diff.first_flip,
        rows=rows,
    )


def show(bench: Workbench, trial: Trial, of: diff_address.Asked | None) -> None:
    """Draw the choice of the other side, and its comparison with the trial; nothing unless it is open."""
    if of is None:
        return
    with st.container(border=True, key="lab_diff_section"):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.markdown("**Compare with another model**", width="stretch")
            st.button(
                "Close", icon=":material/close:", type="tertiary", key="lab_diff_close", on_click=diff_address.close
            )
        _choose(bench, trial, of)
        task = of.task
        if task is None or not task_progress.has_ended(task, "lab_stop_diff", 0.0):
            return
        if task.state == "done":
            figures(task.result())
            st.caption("The tokens are coloured by their change above; the most changed are listed below them.")
        elif task.state == "stopped":
            st.caption("The comparison was stopped.")
        elif task.error is not None:
            notice(task.error)


def _choose(bench: Workbench, trial: Trial, of: diff_address.Asked) -> None:
    """Draw the other model, its KV type, what runs it, and the button that starts the comparison."""
    labels = {diff_address.OWN: "This trial's own model", **place.labels(of.files)}
    if of.unknown:
        notice(f"{of.unknown} is not in the model library. Choose a model below.")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.selectbox(
            "Other model", list(labels), format_func=labels.__getitem__,
            **address.bound(diff_address.MODEL, "lab_diff_model", of.chosen),
        )  # fmt: skip
        st.selectbox(
            "Keys and values", (diff_address.RECORDED, *KV_TYPES), width=220,
            format_func=lambda kind: kind or f"as recorded ({_kv(trial.pool)})",
            **address.bound(diff_address.KV, "lab_diff_kv", of.kv), disabled=bool(of.torch),
        )  # fmt: skip
        st.selectbox(
            "Run by", (diff_address.RECORDED, *DTYPES), width=200,
            format_func=lambda dtype: f"transformers, {dtype}" if dtype else "its own kind",
            **address.bound(diff_address.TORCH, "lab_diff_torch", of.torch),
            help="llama.cpp runs a GGUF file and transformers a folder; transformers can also run a GGUF file, whose "
            f"weights are turned into floats: of {', '.join(GGUF_ARCHITECTURES)}. Floats in both give the same figures",
        )  # fmt: skip
        st.button(
            "Compare" if of.task is None or of.task.is_running else "Compare again", key="lab_diff_start",
            disabled=is_same(trial, of.other) or bench.diffs.running is not None, on_click=attempt,
            args=(prompt_state.ERROR, partial(bench.diffs.start, trial, of.other)),
        )  # fmt: skip
    if is_same(trial, of.other):
        st.caption("Choose another model, another type of keys and values, or transformers.")


def figures(found: Diffed) -> None:
    """Draw the sentence, the figures of both models, and what each of them is."""
    diff = found.diff
    st.subheader(plain(diff.sentence), anchor=False)
    flip = "none" if diff.first_flip is None else f"token {diff.first_flip + 1:,}"
    both = f"{significant(diff.perplexity, 3)} → {significant(diff.other_perplexity, 3)}"
    shown = (
        ("KL per token", f"{kl_text(diff.kl_mean)} nats", KL_HELP),
        ("Largest change", f"{significant(diff.change_max)} nats", CHANGE_HELP),
        ("First greedy flip", flip, FLIP_HELP),
        ("Perplexity, own → other", both, PERPLEXITY_HELP),
    )
    grid = st.grid(len(shown), min_column_width=FIGURE_WIDTH, gap="small")
    for label, value, help in shown:
        with grid.cell():
            st.metric(label, value, help=help)
    moved = (
        "" if found.moved is None else
        f" Scored again in one pass, the recorded log-probabilities change by up to {significant(found.moved)} nats."
    )  # fmt: skip
    st.caption(
        plain(f"Own: {_side(found.file, found.spec)}. Other: {_side(found.other_file, found.other_spec)}.{moved}")
    )


def _side(file: ModelFile, spec: PoolSpec) -> str:
    if is_by_transformers(file, spec):
        return f"{readable(file.path.name)}, {spec.dtype} · transformers"
    return f"{readable(file.path.name)}, {file.quantisation}, {_kv(spec)}"


def _kv(spec: PoolSpec) -> str:
    return spec.type_k if spec.type_k == spec.type_v else f"{spec.type_k} and {spec.type_v}"


def _name(found: Diffed) -> str:
    """Return the name of the other side: what distinguishes it."""
    is_same = found.file.path == found.other_file.path
    parts = [] if is_same else [readable(found.other_file.path.name)]
    if is_by_transformers(found.other_file, found.other_spec) and is_same:
        parts.append(f"{found.other_spec.dtype} in transformers")
    elif is_by_transformers(found.file, found.spec) and is_same:
        parts.append("llama.cpp")
    elif _kv(found.spec) != _kv(found.other_spec):
        parts.append(f"{_kv(found.other_spec)} keys and values")
    return ", ".join(parts) or readable(found.other_file.path.name)


def _finite(values: list[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]
