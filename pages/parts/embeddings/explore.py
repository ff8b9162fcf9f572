"""Exploration of vectors: a heat map or a map, and the neighbours of one text."""

import html
import io
import json
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from engine.embedding.models import EMBEDDED_NAME
from engine.exchange.text_files import TextSet
from engine.step_parts import Floats
from engine.units import counted, digits
from engine.workbench.embedding_manager import Embedded
from engine.workbench.similarity import nearest
from pages.parts.address import bound, put
from pages.parts.benchmark.charts import CONFIG, draw
from pages.parts.embeddings import asked, charts
from pages.parts.labels import one_line
from pages.parts.plain import plain

NEIGHBOURS, MOST_ON_HEAT_MAP = 10, 120
LABEL, SHOWN = 90, 600
TEXT_WIDTH, TEXT_WIDTH_ALONE, CHARACTER_WIDTH = 222, 285, 6
WRAPPED = 62
"""Row height in pixels; Streamlit wraps texts in rows of more than four times the font's size."""

EMPTY, MAP = "(empty)", "embed_map"
ENGLISH = (
    f"{EMBEDDED_NAME} was trained on English: it compares texts in other languages by their words, hardly by meaning."
)


def show(texts: TextSet, embedded: Embedded) -> None:
    """Draw the page, the chart left and the neighbours right, or below it in a narrow window."""
    _caption(embedded)
    chosen = asked.number("text", len(texts.texts))
    grid = st.grid(5, min_column_width=150, gap="medium")
    with grid.cell(column_span=3):
        _chart(texts, embedded, chosen)
    with grid.cell(column_span=2):
        _neighbours(texts, embedded, chosen)
        _downloads(embedded)


def _caption(embedded: Embedded) -> None:
    num, elapsed_s = len(embedded.texts), embedded.elapsed_s
    parts = [f"{counted(num, 'text')} by {embedded.model}", f"{embedded.vectors.shape[1]:,} numbers each"]
    if elapsed_s > 0:
        parts.append(f"{digits(num / elapsed_s)} texts/s")
    if embedded.num_cut and embedded.max_tokens is not None:
        parts.append(f"of {counted(embedded.num_cut, 'text')} only the first {embedded.max_tokens:,} tokens count")
    st.caption(plain(" · ".join(parts)))
    if embedded.model == EMBEDDED_NAME and not all(map(str.isascii, embedded.texts)):
        st.caption(ENGLISH)


def _chart(texts: TextSet, embedded: Embedded, chosen: int) -> None:
    view = asked.choice("view", tuple(asked.VIEWS))
    st.segmented_control(
        "Chart", list(asked.VIEWS), format_func=asked.VIEWS.__getitem__, required=True, label_visibility="collapsed",
        **bound("view", "embed_view", view),
    )  # fmt: skip
    if view == "map":
        _map(texts, embedded, chosen)
        return
    draw(_heat_map(texts.texts[:MOST_ON_HEAT_MAP], embedded.vectors[:MOST_ON_HEAT_MAP]), "embed_heat_map")
    if len(texts.texts) > MOST_ON_HEAT_MAP:
        st.caption(f"The first {MOST_ON_HEAT_MAP:,} of {counted(len(texts.texts), 'text')}; the map has all of them.")


def _map(texts: TextSet, embedded: Embedded, chosen: int) -> None:
    figure = charts.text_map(texts.texts, texts.groups, embedded.projection, chosen)
    st.plotly_chart(
        figure, key=MAP, config=CONFIG, selection_mode="points", on_select=_choose_on_map,
        alt=html.unescape(figure.layout.title.text),
    )  # fmt: skip
    st.caption("A click on a point shows its neighbours.")


def _choose_on_map() -> None:
    picked = [point for point in st.session_state[MAP].selection.points if "customdata" in point]
    if picked:
        put("text", str(picked[0]["customdata"]))


def _neighbours(texts: TextSet, embedded: Embedded, chosen: int) -> None:
    labels = {str(place): f"{place} · {one_line(text, LABEL) or EMPTY}" for place, text in enumerate(texts.texts, 1)}
    st.selectbox(
        "Neighbours of", list(labels), **bound("text", "embed_text", str(chosen + 1)), format_func=labels.__getitem__
    )
    if len(texts.texts[chosen]) > LABEL:
        st.caption(plain(texts.texts[chosen], SHOWN))
    found = nearest(embedded.vectors, embedded.vectors[chosen], NEIGHBOURS, without=chosen)
    table(texts, found, "embed_neighbours", "The texts nearest to the chosen one", is_narrow=True)


def table(texts: TextSet, found: Sequence[tuple[int, float]], key: str, alt: str, *, is_narrow: bool = False) -> None:
    """Draw texts with their cosine as a table; in a narrow column, texts are wrapped where they are long."""
    shown = [one_line(texts.texts[place], SHOWN) or EMPTY for place, _cosine in found]
    columns: dict[str, list[float] | list[str]] = {"cosine": [cosine for _place, cosine in found]}
    if texts.groups:
        columns["group"] = [one_line(texts.groups[place], LABEL) for place, _cosine in found]
    width = TEXT_WIDTH if texts.groups else TEXT_WIDTH_ALONE
    config = {
        "cosine": st.column_config.NumberColumn(
            format="%.3f",
            width=70 if texts.groups or not is_narrow else None,
            help="1: the same meaning; about 0: nothing in common",
        ),
        "text": st.column_config.TextColumn(width=width if is_narrow else "large"),
    }
    st.space("small")  # space for the table's own buttons, which would cover the control above
    st.dataframe(
        {**columns, "text": shown}, hide_index=True, key=key, height="content",
        row_height=_row_height(shown, width) if is_narrow else None, column_config=config, alt=alt,
        column_order=("cosine", "group", "text"),
    )  # fmt: skip


def _row_height(texts: Sequence[str], width: int) -> int | None:
    """Return a height for three lines if any text exceeds one line of a column of `width` pixels; else None."""
    return WRAPPED if max(map(len, texts), default=0) * CHARACTER_WIDTH > width else None


def _downloads(embedded: Embedded) -> None:
    with st.container(horizontal=True, gap="small"):
        st.download_button(
            "Vectors", lambda: _as_array(embedded), "vectors.npy", "application/octet-stream", key="embed_npy",
            icon=":material/download:", type="tertiary", on_click="ignore", help="A numpy array, float32, a row a text",
        )  # fmt: skip
        st.download_button(
            "Texts and vectors", lambda: _as_lines(embedded), "vectors.jsonl", "application/jsonl", key="embed_jsonl",
            icon=":material/download:", type="tertiary", on_click="ignore", help="JSON lines, a text with its vector",
        )  # fmt: skip


def _as_array(embedded: Embedded) -> bytes:
    file = io.BytesIO()
    np.save(file, embedded.vectors)
    return file.getvalue()


def _as_lines(embedded: Embedded) -> bytes:
    rows = zip(embedded.texts, embedded.vectors.tolist(), strict=True)
    return "".join(
        json.dumps({"text": text, "vector": vector}, ensure_ascii=False) + "\n" for text, vector in rows
    ).encode("utf-8", "replace")


@st.cache_data(max_entries=4, show_spinner=False)
def _heat_map(texts: Sequence[str], vectors: Floats) -> go.Figure:
    return charts.heat_map(texts, vectors)
