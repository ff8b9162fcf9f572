"""Beam search in the Prompt lab: its parameters, progress with Stop, and why it ended without a result."""

import streamlit as st

from engine.comparing.beams import MOST_BEAMS, MOST_NEW_TOKENS, BeamSpec, EarlyStopping
from engine.errors import ConfigError
from engine.workbench import Workbench
from pages.parts import prompt_state, task_progress
from pages.parts.notice import attempt, notice
from pages.parts.plain import plain
from pages.parts.sampling_editor import in_labels

PREFIX = "lab_beams_"
WIDTH = 340
LABELS = {
    "num_beams": "Beams",
    "max_new_tokens": "Longest sequence, tokens",
    "length_penalty": "Length penalty",
    "early_stopping": "End of the search",
    "num_return_sequences": "Sequences returned",
}
HELPS = {
    "num_beams": f"num_beams: beginnings that are followed at the same time, up to {MOST_BEAMS}.",
    "max_new_tokens": f"max_new_tokens: up to {MOST_NEW_TOKENS:,}.",
    "length_penalty": "length_penalty: a score is the sum of the log-probabilities / length ** length_penalty. Above 0 "
    "favours long sequences, below 0 short ones.",
    "early_stopping": "early_stopping of transformers: False, True or never.",
    "num_return_sequences": "num_return_sequences. Empty: as many as there are beams.",
}
ENDS: dict[EarlyStopping, str] = {
    False: "when a better sequence is unlikely (False)",
    True: "at as many complete ones as beams (True)",
    "never": "when no better one is possible (never)",
}
ABOUT = (
    "The best continuations of the prompt by their whole probability. Sampling and stop strings do not apply. Other "
    "requests are slower during a search with many beams."
)


def popover(bench: Workbench) -> None:
    """Draw the button that opens the parameters of a beam search; call inside a row."""
    engine, problem = bench.model.engine, bench.beams.problem
    with (
        st.popover("Beam search", icon=":material/account_tree:", disabled=engine is None, key="lab_beams"),
        st.container(width=WIDTH),
    ):
        if problem or engine is None:
            st.caption(plain(problem))
            return
        st.caption(ABOUT)
        _fields()
        num_beams = st.session_state[PREFIX + "num_beams"]
        if (num_beams or 0) > engine.capabilities.num_sequences:
            st.caption(
                f"This model is loaded with {engine.capabilities.num_sequences:,} sequences: with more beams, texts "
                "are computed again at each token."
            )
        st.button(
            "Search", type="primary", icon=":material/account_tree:", key="do_beams", on_click=attempt,
            args=(prompt_state.ERROR, lambda: _start(bench)), disabled=bench.beams.running is not None,
        )  # fmt: skip


def _fields() -> None:
    """Draw the fields. None has bounds: Streamlit would show a value beyond them, and keep the previous one."""
    defaults = BeamSpec()
    for name in LABELS:
        st.session_state.setdefault(PREFIX + name, getattr(defaults, name))
        key, help = PREFIX + name, HELPS[name]
        if name == "early_stopping":
            st.selectbox(
                LABELS[name], list(ENDS), format_func=lambda end: ENDS[end], key=key, help=help, persist_state="session"
            )
        else:
            step = 0.1 if name == "length_penalty" else 1
            placeholder = "as many as beams" if name == "num_return_sequences" else None
            st.number_input(
                LABELS[name], step=step, key=key, help=help, placeholder=placeholder, persist_state="session"
            )


def _start(bench: Workbench) -> None:
    given = {name: st.session_state[PREFIX + name] for name in LABELS}
    missing = next((name for name, value in given.items() if value is None and name != "num_return_sequences"), None)
    if missing:
        raise ConfigError(f"{LABELS[missing]}: enter a number")
    with in_labels(LABELS):
        spec = BeamSpec(**given)
    prompt_state.show_id(bench.beams.find(prompt_state.draft(), spec).trial_id)


def progress(bench: Workbench) -> None:
    """Draw the progress of a search with Stop; of the one in the address also why it ended without a result."""
    task = bench.beams.last
    if task is None or task.state == "done":
        return
    if task.is_running:
        task_progress.with_stop(task, "lab_stop_beams")
    elif task.trial_id == st.session_state[prompt_state.TRIAL]:
        if task.state == "stopped":
            st.caption("The beam search was stopped. Nothing of it was kept.")
        else:
            notice(str(task.error))
