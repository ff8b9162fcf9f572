"""Rendered chat: the text that the model is given, as tokens with its special tokens visible."""

from collections.abc import Sequence
from typing import NamedTuple

import streamlit as st

from engine.errors import ConfigError, EngineError, sentence
from engine.units import counted
from engine.vocabulary import Vocabulary
from engine.workbench import Workbench
from engine.workbench.trials import Trial
from pages.parts import prompt_state
from pages.parts.chat import state
from pages.parts.notice import notice
from pages.parts.plain import escaped_html, plain

WIDTH, MOST_SHOWN = 640, 8000
STYLE = """
<style>
.rendered { max-height: 50vh; padding: 2px; overflow-y: auto; font-family: "Source Code Pro", monospace;
  font-size: 0.87rem; line-height: 1.9; white-space: pre-wrap; overflow-wrap: anywhere; }
.rendered span { border-radius: 2px; margin-right: 2px; outline: 1px solid #8884; }
.rendered .control { padding: 0 4px; background: color-mix(in srgb, currentColor 9%, transparent); }
</style>
"""


class Rendered(NamedTuple):
    """The prompt of a chat: its token ids, what they stand for, and how many fit into the context."""

    ids: Sequence[int]
    vocabulary: Vocabulary
    n_ctx: int


def popover(bench: Workbench, trial: Trial | None) -> None:
    """Draw the button whose popover has the prompt: with the message being written, else as it was run."""
    opened = st.popover("Template", key="lab_rendered", on_change="rerun")
    if not opened.open:
        return
    with opened, st.container(width=WIDTH):
        try:
            rendered = _rendered(bench, trial)
        except ConfigError as error:
            st.caption(plain(sentence(error)))
        except EngineError as error:
            notice(error)
        else:
            _show(rendered)


def _rendered(bench: Workbench, trial: Trial | None) -> Rendered:
    if trial is not None and trial.prompt_ids and not state.is_written():
        return Rendered(trial.prompt_ids, trial.steps.vocabulary, trial.status()["n_ctx"] or 0)
    _, ids = bench.trials.render(prompt_state.draft_of(state.written()), trial)
    engine, _ = bench.model.loaded()
    return Rendered(ids, engine.vocabulary, engine.capabilities.n_ctx)


def _show(rendered: Rendered) -> None:
    ids, vocabulary, n_ctx = rendered
    spans = "".join(_span(vocabulary, token) for token in ids[:MOST_SHOWN])
    st.html(f'{STYLE}<div class="rendered" tabindex="0">{spans}</div>')
    shown = f"the first {MOST_SHOWN:,} of " if len(ids) > MOST_SHOWN else ""
    st.caption(f"{shown}{len(ids):,} of {counted(n_ctx, 'token')}" if n_ctx else f"{shown}{counted(len(ids), 'token')}")


def _span(vocabulary: Vocabulary, token: int) -> str:
    kind = "control" if vocabulary.is_control(token) else "text"
    return f'<span class="{kind}">{escaped_html(vocabulary.text(token))}</span>'
