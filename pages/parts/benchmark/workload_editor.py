"""Workload editor of a plan: random tokens or texts as prompts, or texts to embed, and how many."""

import json
from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine.bench.planning.plan import Plan, Question, TextWorkload, Workload
from engine.bench.planning.prompts import read_prompts, sample_prompts
from engine.stats import FIRST_LOOK
from pages.parts.benchmark import axis_rows

PREFIX = "plan_"
ASKED, TEXTS = PREFIX + "asked", PREFIX + "prompts"
GENERATING, EMBEDDING = ("num_prompt", "num_generated", "duration_s"), ("num_texts", "num_words", "spread")
EDITED = {*GENERATING, *EMBEDDING, "asked", "prompts", "texts"}
ROUNDS = (
    "A round measures every configuration once, in a new random order, so that a slow minute hits all alike. More "
    "rounds tell smaller differences from noise."
)
WHICH = {"tokens": "random tokens", "prompts": "texts"}
WHICH_TO_EMBED = {"tokens": "words of the bundled sentences", "prompts": "texts"}


def fill(plan: Plan) -> None:
    """Put a plan's workload on the screen; call only before the widgets are drawn, or in a callback."""
    state = st.session_state
    if plan.is_embedding:
        embedded = TextWorkload.from_dict(plan.workload)
        state[ASKED], state[TEXTS] = "prompts" if embedded.texts else "tokens", as_lines(embedded.texts)
    else:
        generated = Workload.from_dict(plan.workload)
        state[ASKED], state[TEXTS] = generated.asked, as_lines(generated.prompts)
    for name in _fields(plan.question):
        state[PREFIX + name] = getattr(embedded if plan.is_embedding else generated, name)


def read(question: Question, axes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the workload that is on the screen. Raises ConfigError if the texts cannot be read."""
    state = st.session_state
    found = {name: state[PREFIX + name] for name in _fields(question) if name not in axes}
    if state[ASKED] == "prompts":
        texts = read_prompts(state[TEXTS])
        found |= {"texts": texts} if question == "embedding" else {"asked": "prompts", "prompts": texts}
    return found


def numbers(question: Question) -> None:
    """Draw the fields for size and repetition of the workload, except values that an axis varies."""
    is_text, shown = st.session_state[ASKED] == "prompts", st.session_state[axis_rows.SHOWN]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        if question == "embedding":
            if "num_texts" not in shown:
                number("num_texts", "Texts at once", 1, 100_000, 64, "Texts per call, in repeated calls")
            if not is_text and "num_words" not in shown:
                number("num_words", "Text length, words", 1, 10_000, 8, "On average; lengths are log-normal")
        else:
            if not is_text and "num_prompt" not in shown:
                number("num_prompt", "Prompt, tokens", 0, 1 << 20, 16, "Random tokens per prompt")
            if "num_generated" not in shown:
                number("num_generated", "Generated, tokens", 0, 1 << 20, 16, "Tokens generated per prompt")
        if question != "settings":
            number("rounds", "Rounds", 1, 10_000, 1, f"Samples per configuration; a verdict needs {FIRST_LOOK}")
    if question != "settings":
        st.caption(ROUNDS)


def which(question: Question) -> None:
    """Draw the choice between generated texts and the user's own."""
    words = WHICH_TO_EMBED if question == "embedding" else WHICH
    help = "Texts are realistic; random tokens are comparable with llama-bench"
    st.segmented_control(
        "Texts" if question == "embedding" else "Prompts", tuple(words), key=ASKED, required=True,
        persist_state="session", format_func=words.__getitem__, help=None if question == "embedding" else help,
    )  # fmt: skip
    if st.session_state[ASKED] != "prompts":
        return
    st.text_area(
        "Texts", key=TEXTS, height=120, persist_state="session", placeholder="One text per line, or JSONL",
        help="One per line, or JSON lines with a field prompt or text", label_visibility="collapsed",
    )  # fmt: skip
    st.button("Insert sample prompts", type="tertiary", key="plan_samples", on_click=_sample_prompts)


def number(name: str, label: str, low: Any, high: Any, step: Any, help: str) -> None:
    """Draw a field for one number of the plan."""
    st.number_input(label, low, high, step=step, key=PREFIX + name, help=help, width=138, persist_state="session")


def as_lines(texts: tuple[str, ...]) -> str:
    """Return texts as typed: one per line, or JSON lines if any text has several lines or starts with "{"."""
    if any("\n" in text or text.startswith("{") for text in texts):
        return "\n".join(json.dumps({"prompt": text}, ensure_ascii=False) for text in texts)
    return "\n".join(texts)


def _fields(question: Question) -> tuple[str, ...]:
    return EMBEDDING if question == "embedding" else GENERATING


def _sample_prompts() -> None:
    st.session_state[TEXTS] = as_lines(sample_prompts())
