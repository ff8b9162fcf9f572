"""Search by meaning: the question above all, example questions, and the texts nearest to it."""

import streamlit as st

from engine.embedding.specs import EmbedSpec
from engine.exchange.text_files import TextSet
from engine.units import digits
from engine.workbench import Workbench
from engine.workbench.embedding_manager import Embedded
from engine.workbench.similarity import nearest
from pages.parts.address import bound
from pages.parts.embeddings import asked, explore, source, waiting
from pages.parts.labels import one_line
from pages.parts.plain import plain

FIND = "find"
"""Query parameter of the URL: the question."""

MOST_ASKED, MOST_FOUND, SHOWN = 1_000, 5, 120
EXAMPLES = ("we came too late for the boat", "my home gets more expensive", "food without flavour",
            "the software stops working")  # fmt: skip
"""Questions about the shipped sentences, which share at most a word with the answers."""


def box() -> str:
    """Draw the search box, with example questions for the shipped sentences; return the question."""
    question = st.query_params.get(FIND, "")[:MOST_ASKED]
    st.text_input(
        "Find by meaning", **bound(FIND, "embed_find", question), max_chars=MOST_ASKED, placeholder=EXAMPLES[0],
        icon=":material/search:",
    )  # fmt: skip
    if asked.choice("source", tuple(asked.SOURCES)) in (source.ENGLISH, source.SHIPPED):
        st.pills(
            "Examples of questions", EXAMPLES, label_visibility="collapsed",
            **bound(FIND, "embed_examples", question if question in EXAMPLES else None),
        )  # fmt: skip
    return question.strip()


def show(bench: Workbench, texts: TextSet, embedded: Embedded, spec: EmbedSpec, question: str) -> None:
    """Draw the texts nearest to a question; models that distinguish queries embed it as a query."""
    if not question:
        return
    found = waiting.vectors(bench, (question,), spec, is_query=True)
    if found is None:
        return
    rows = nearest(embedded.vectors, found.vectors[0], MOST_FOUND)
    place, cosine = rows[0]
    st.markdown(plain(f"Nearest, cosine {digits(cosine)}: “{one_line(texts.texts[place], SHOWN)}”"))
    explore.table(texts, rows, "embed_found", "The texts nearest to what was asked")
