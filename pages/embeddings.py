"""Embeddings page: search of texts by meaning; a similarity heat map or a two-dimensional map, with neighbours."""

import streamlit as st

from engine.workbench import current
from pages.parts.embeddings import asked, explore, model_choice, search, source, waiting

bench = current()
st.title("Embeddings", anchor=False)
asked.open_address()
question = search.box()
answer = st.container()
with st.container(horizontal=True, vertical_alignment="center", gap="small"):
    found = source.choose()
    spec = model_choice.choose(bench)
texts = source.read(found)
if texts is not None and spec is not None:
    embedded = waiting.vectors(bench, texts.texts, spec)
    if embedded is None:
        source.preview(texts)
    else:
        with answer:
            search.show(bench, texts, embedded, spec, question)
        explore.show(texts, embedded)
