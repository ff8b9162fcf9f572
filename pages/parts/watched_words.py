"""Words watched in the Prompt lab: they stand in the URL, and stay for the next trials of the tab."""

import streamlit as st

from engine.watched_words import MAX_WORD_CHARACTERS, MAX_WORDS

NAME, WORDS = "watch", "lab_words"


def words() -> list[str]:
    """Return the words in the URL, else those of this tab, which then go into the URL."""
    state = st.session_state
    asked = st.query_params.get_all(NAME)
    if not asked and state.get(WORDS):
        st.query_params[NAME] = state[WORDS]
    state[WORDS] = asked or state.get(WORDS, [])
    return list(state[WORDS])


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
