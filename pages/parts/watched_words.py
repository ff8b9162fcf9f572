"""Words watched in the Prompt lab: they stand in the URL, and stay for the next trials of the tab."""

from dataclasses import replace

import streamlit as st

from engine.watched_words import MAX_WORD_CHARACTERS, MAX_WORDS, token_sets
from engine.workbench import Workbench
from engine.workbench.trials import Draft

NAME, WORDS = "watch", "lab_words"


def words() -> list[str]:
    """Return the words in the URL, else those of this tab, which then go into the URL."""
    state = st.session_state
    asked = st.query_params.get_all(NAME)
    if not asked and state.get(WORDS):
        st.query_params[NAME] = state[WORDS]
    state[WORDS] = asked or state.get(WORDS, [])
    return list(state[WORDS])


def recorded(bench: Workbench, draft: Draft) -> Draft:
    """Return a draft that records the words while its text is generated, where each is a single token."""
    if bench.model.engine is None or not words():
        return draft
    watched = token_sets(bench.model.engine, words()[:MAX_WORDS])
    return replace(draft, request=replace(draft.request, watched=watched))


def take(value: object) -> None:
    """Put the words that a reader watches into the URL; what is not a list of short texts is passed over."""
    if not isinstance(value, list) or len(value) > MAX_WORDS:
        return
    if all(isinstance(word, str) and len(word) <= MAX_WORD_CHARACTERS for word in value):
        st.session_state[WORDS] = value
        if value:
            st.query_params[NAME] = value
        elif NAME in st.query_params:
            del st.query_params[NAME]
