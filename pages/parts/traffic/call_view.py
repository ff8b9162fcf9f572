"""One call: its answers as token strips, the request as sent, the prompt as the model saw it, and where time went."""

import json

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine.api.openai.server import ApiServer
from engine.api.openai.traffic import LONGEST_BODY, CallRow
from engine.errors import EngineError
from engine.units import counted, quantity
from engine.workbench import Workbench
from engine.workbench.trials import Trial
from pages.parts import address
from pages.parts.notice import notice
from pages.parts.plain import plain, visible
from pages.parts.token_strip import token_strip
from pages.parts.traffic import call_code, why_slow
from pages.parts.traffic.call_cells import unsure
from pages.parts.traffic.call_filter import LIVE
from pages.parts.traffic.call_table import ANSWER, CALL

AWAIT_S = 0.25
MOST_BESIDE, MOST_COMPARED = 8, 8
LONGEST_SHOWN = 100_000
"""Answers whose buttons stand beside each other, of more one is chosen from a list; answers to compare; characters of a
prompt that are drawn."""
LONG_CHARACTERS, LONG_LINES, LONG_HEIGHT = 600, 15, 360
"""A text of more characters or lines scrolls, in a box of this height in pixels."""


def show(bench: Workbench, api: ApiServer) -> None:
    """Draw the call in the URL; nothing where there is none."""
    given = st.query_params.get(CALL, "")
    is_number = given.isascii() and given.isdecimal() and len(given) < 10
    row = api.traffic.row(int(given)) if is_number else None
    if row is None:
        return
    number = _answer_number(row)
    trial = _trial(bench, row.trials[number - 1]) if row.trials else None
    st.subheader(f"Call {row.number:,}", anchor=False)
    st.caption(plain(sentence(row, is_in_strip=trial is not None and len(row.trials) == 1)))
    _choice(row, number)
    if row.error and (trial is None or trial.error is None):  # the strip shows a trial's own error
        notice(EngineError(row.error))
    said = without_body(row)
    if said:
        st.caption(said)
        return
    _actions(bench, api, row, trial)
    with st.container(horizontal=True, gap="medium", key="traffic_beside"):
        _answer(bench, row, trial)
        with st.container(key="traffic_request"):
            _request(row, trial)
            if trial is not None and trial.done():
                why_slow.show(bench, api.traffic, row, trial)
    if row.state in LIVE:
        _await_change(api, row)


def sentence(row: CallRow, *, is_in_strip: bool = False) -> str:
    """Return what was asked of whom, and what came of it, in words.

    is_in_strip: the strip of its only answer is drawn, which has counts and rate. The time to the first token is here
    counted from the request, there from when it was in the queue.
    """
    figures, said = row.figures, [f"{row.client} to {row.endpoint}"]
    if row.state in LIVE:  # the strip shows its figures, which change
        return " · ".join([*said, row.state])
    said += [row.model] if row.trials and row.model else []
    said.append(row.state if row.is_unread else f"{row.state} after {quantity(row.elapsed_s, 's')}")
    has_cached = figures.num_cached > 0 and not is_in_strip
    cached = f", {figures.num_cached:,} of them from the cache" if has_cached else ""
    if figures.num_prompt:
        said.append(f"{counted(figures.num_prompt, 'prompt token')}{cached}")
    if figures.num_prompt and row.trials and not is_in_strip:
        said.append(f"{counted(figures.num_generated, 'token')} generated")
    if figures.ttft_s is not None:
        said.append(f"first token after {quantity(figures.ttft_s, 's')}")
    if figures.per_s is not None and not is_in_strip:
        said.append(quantity(figures.per_s, "tok/s"))
    if figures.surprise_bits is not None:
        said.append(f"surprise {quantity(figures.surprise_bits, 'bits')}")
    if least := unsure(figures):
        said.append(f"least expected {least}")
    return " · ".join(said)


def pretty(body: str) -> str:
    """Return a request as indented JSON; as it came where it is none, or was cut."""
    try:
        return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return body


def harmless(text: str) -> str:
    """Return a text of several lines, cut, with its control and direction characters replaced."""
    shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
    return "\n".join(visible(line) for line in shown.replace("\r\n", "\n").split("\n"))


def without_body(row: CallRow) -> str:
    """Return why there is no request to show; empty where there is one."""
    if row.is_unread:
        return "This request was refused before its body was read."
    return "" if row.num_bytes else "This request has no body."


def why_gone(bench: Workbench, row: CallRow) -> str:
    """Return why an answer is not there; empty for a failed call, whose error stands above."""
    if row.state == "failed":
        return ""
    if not bench.kept.keeps_calls:
        return "This answer was not kept: the history keeps no calls (LOGITBENCH_API_HISTORY_MB is 0)."
    asked = call_code.request_of(row)
    if asked is not None and asked.get("store") is False:
        return "This answer was not kept: the request had store set to false."
    store = " the request had store set to false," if row.is_cut else ""
    return f"This answer is not there any more:{store} it was deleted, or the history made room for newer calls."


def _answer_number(row: CallRow) -> int:
    """Return the number of the answer in the URL; 1 where there is none."""
    given = st.query_params.get(ANSWER, "1")
    number = int(given) if given.isascii() and given.isdecimal() and len(given) < 4 else 1
    return number if 1 <= number <= len(row.trials) else 1


def _choice(row: CallRow, number: int) -> None:
    """Draw the choice among several answers."""
    most = len(row.trials)
    if most < 2:
        return
    arguments = address.bound(ANSWER, "traffic_answer_number", number)
    if most > MOST_BESIDE:
        st.selectbox(
            "Answer", range(1, most + 1), format_func=lambda each: f"Answer {each} of {most}", width=200,
            label_visibility="collapsed", **arguments,
        )  # fmt: skip
        return
    st.segmented_control(
        "Answer", range(1, most + 1), format_func=lambda each: f"Answer {each}", required=True,
        label_visibility="collapsed", **arguments,
    )  # fmt: skip


def _trial(bench: Workbench, id: str) -> Trial | None:
    try:
        return bench.trials.trial(id)
    except EngineError:
        return None


def _actions(bench: Workbench, api: ApiServer, row: CallRow, trial: Trial | None) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if trial is not None:
            st.page_link(
                "prompt_lab.py", label="Run again with changes", icon=":material/edit_note:",
                query_params={"trial": trial.id},
            )  # fmt: skip
            st.page_link(
                "compare.py", label="As a variant in Compare", icon=":material/compare_arrows:",
                query_params={"trials": ",".join(_compared(row, trial))},
            )  # fmt: skip
        call_code.show(bench, api, row, trial)


def _compared(row: CallRow, trial: Trial) -> list[str]:
    """Return the trial, followed by the call's other answers."""
    return [trial.id, *(id for id in row.trials if id != trial.id)][:MOST_COMPARED]


def _answer(bench: Workbench, row: CallRow, trial: Trial | None) -> None:
    """Draw the chosen answer, or why it is not there."""
    gone = why_gone(bench, row) if trial is None and row.trials else ""
    if trial is None and not gone:
        return
    with st.container(key="traffic_answer"):
        if trial is None:
            st.caption(gone)
        else:
            token_strip(trial.id, key="traffic_strip", k=bench.settings.shown_top_k)


def _request(row: CallRow, trial: Trial | None) -> None:
    """Draw the prompt as the model saw it and the request as sent."""
    tabs = ["Request as sent"] if trial is None else ["Prompt as rendered", "Request as sent"]
    *rendered, sent = st.tabs(tabs)
    for tab in rendered:
        _code(tab, trial.draft.prompt if trial else "", None)
    if trial is not None and trial.draft.unknown_fields:
        sent.caption(plain(f"Sent, not understood: {', '.join(trial.draft.unknown_fields)}"))
    if row.is_cut:
        sent.caption(f"The first {LONGEST_BODY:,} of {row.num_bytes:,} bytes")
    _code(sent, pretty(row.body), "json")


def _code(tab: DeltaGenerator, text: str, language: str | None) -> None:
    """Draw a text in the room that it needs; a long one scrolls."""
    is_long = len(text) > LONG_CHARACTERS or text.count("\n") >= LONG_LINES
    tab.code(harmless(text), language=language, wrap_lines=True, height=LONG_HEIGHT if is_long else "content")


@st.fragment(run_every=AWAIT_S)
def _await_change(api: ApiServer, before: CallRow) -> None:
    """Rerun the page once the call begins or ends."""
    if has_changed(before, api.traffic.row(before.number)):
        st.rerun()


def has_changed(before: CallRow, now: CallRow | None) -> bool:
    """Return whether the page shows more than figures of a call otherwise than before; True for one that is gone."""
    return now is None or (now.state, now.trials) != (before.state, before.trials)
