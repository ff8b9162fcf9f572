"""One call: its answers as trials, the request as sent, and why it took so long."""

import json

import streamlit as st

from engine.api.openai.traffic import CallRow
from engine.units import quantity
from engine.workbench import Workbench
from pages.parts.plain import plain


def show(bench: Workbench, row: CallRow) -> None:
    """Draw the call."""
    st.subheader(f"Call {row.number:,}", anchor=False)
    if row.error:
        st.markdown(plain(row.error))
    elif row.figures.num_prompt:
        st.markdown(sentence(row))
    with st.container(horizontal=True, gap="small"):
        for number, trial in enumerate(row.trials[:8], start=1):
            label = "Open in the Prompt lab" if len(row.trials) == 1 else f"Answer {number}"
            st.page_link("prompt_lab.py", label=label, icon=":material/open_in_new:", query_params={"trial": trial})
    sent, rendered = st.tabs(["Request as sent", "Prompt as rendered"])
    sent.code(pretty(row.body), language="json", wrap_lines=True)
    answer = bench.trials.watch(row.trials[0]) if row.trials else None
    rendered.code(answer.draft.prompt if answer is not None else "", language=None, wrap_lines=True)


def sentence(row: CallRow) -> str:
    """Return what the time went into, in words."""
    figures = row.figures
    cached = f", {figures.num_cached:,} of them from the cache" if figures.num_cached else ""
    said = [f"{figures.num_prompt:,} prompt tokens{cached}", f"{figures.num_generated:,} generated"]
    if figures.ttft_s is not None:
        said.append(f"first token after {quantity(figures.ttft_s, 's')}")
    if figures.per_s is not None:
        said.append(quantity(figures.per_s, "tok/s"))
    said.append(f"{quantity(row.elapsed_s, 's')} in all")
    return plain(", ".join(said) + ".")


def pretty(body: str) -> str:
    """Return a request as indented JSON; as it came where it is none, or was cut."""
    try:
        return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return body
