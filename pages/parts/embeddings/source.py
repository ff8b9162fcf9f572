"""Source of the texts: the sentences that ship, pasted lines, or a file."""

import streamlit as st

from engine.errors import EngineError
from engine.exchange.text_files import TextSet, read_texts, shipped_texts
from engine.units import counted
from engine.workbench import current
from pages.parts.address import bound
from pages.parts.embeddings import asked
from pages.parts.labels import one_line
from pages.parts.notice import notice
from pages.parts.plain import plain

ENGLISH, SHIPPED, PASTED, FILE = asked.SOURCES
ENDINGS = ("csv", "tsv", "jsonl", "ndjson", "txt", "md", "log")
MOST_MB, MOST_TEXTS, MOST_CHARACTERS = 8, 5_000, 2_000_000
PREVIEWED, MOST_SHOWN = 100, 300


def choose() -> str:
    """Return the source in the URL and draw its selector."""
    chosen = asked.choice("source", tuple(asked.SOURCES))
    st.segmented_control(
        "Texts", list(asked.SOURCES), **bound("source", "embed_source", chosen), required=True,
        format_func=asked.SOURCES.__getitem__, label_visibility="collapsed",
    )  # fmt: skip
    return chosen


def read(source: str) -> TextSet | None:
    """Return the texts and show how many were left out; None if there are too few to compare."""
    try:
        found = _found(source)
    except EngineError as error:
        notice(error)
        return None
    if found is None:
        return None
    if found.num_left_out:
        st.caption(f"Only the first {MOST_TEXTS:,}; {counted(found.num_left_out, 'text')} after them left out.")
    if len(found.texts) < 2:
        st.caption("One text has nothing to be compared with: give two or more.")
        return None
    return found


def _found(source: str) -> TextSet | None:
    """Return the texts of a source; None while there are none. Raises EngineError."""
    if source in (ENGLISH, SHIPPED):
        return shipped_texts("English" if source == ENGLISH else "")
    return _pasted() if source == PASTED else _uploaded()


def preview(found: TextSet) -> None:
    """Draw the first texts, while there are no vectors yet."""
    rows = [one_line(text, MOST_SHOWN) for text in found.texts[:PREVIEWED]]
    table = {"group": list(found.groups[:PREVIEWED]), "text": rows} if found.groups else {"text": rows}
    st.dataframe(table, hide_index=True, key="embed_preview", alt="The first of the texts")


def _pasted() -> TextSet | None:
    text = st.text_area(
        "Texts, one a line", key="embed_pasted", height=160, max_chars=MOST_CHARACTERS, persist_state="session",
        placeholder="The train is late.\nOur train has not come yet.\nThe soup needs salt.",
    )  # fmt: skip
    if not text.strip():
        st.caption("Paste two lines or more, then press Ctrl+Enter: their vectors are compared here.")
        return None
    return read_texts("pasted lines", text.encode("utf-8", "replace"), most=MOST_TEXTS)


def _uploaded() -> TextSet | None:
    file = st.file_uploader(
        "A table with a header, JSON lines, or plain lines", ENDINGS, key="embed_file", max_upload_size=MOST_MB
    )
    if file is None:
        return None
    name, data = one_line(file.name, 80), file.getvalue()
    found = _read(name, data, None)
    if len(found.columns) > 1:
        chosen = st.selectbox(
            "Column", found.columns, index=found.columns.index(found.column), key=f"embed_column_{file.file_id}",
            format_func=lambda column: one_line(column, 80),
        )  # fmt: skip
        found = _read(name, data, chosen)
    st.caption(f"{counted(len(found.texts), 'text')} of {plain(name)}")
    return found


@st.cache_data(max_entries=4, show_spinner=False)
def _read(name: str, data: bytes, column: str | None) -> TextSet:
    return current().importer.read_texts(name, data, column=column, most=MOST_TEXTS)
