"""Embeddings page: search of texts by meaning; a similarity heat map or a two-dimensional map, with neighbours."""

import streamlit as st

from engine.workbench import current
from pages.parts.embeddings import asked, consent, explore, model_choice, search, source, waiting

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
    may_send = consent.given(spec, len(texts.texts))
    embedded = waiting.vectors(bench, texts.texts, spec) if may_send else None
    if embedded is None:
        source.preview(texts)
    else:
        with answer:
            search.show(bench, texts, embedded, spec, question)
        explore.show(texts, embedded)
