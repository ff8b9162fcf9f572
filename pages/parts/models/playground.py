"""Playground of a model's text handling: token ids and bytes, and the prompt that its chat template renders."""

import pandas as pd
import streamlit as st

from engine.errors import EngineError
from engine.models import ModelFile
from engine.models.details import readable
from engine.models.tokenizer import Tokenizer
from engine.protocol import Engine
from engine.units import counted
from engine.vocabulary import Vocabulary
from engine.workbench import Workbench
from pages.parts import number_columns
from pages.parts.labels import one_line, token_text
from pages.parts.live_ask import MAX_TEXT
from pages.parts.notice import notice
from pages.parts.typed_tokens import typed_tokens

Source = Engine | Tokenizer

TEXT, CONTROL = "playground_text", "playground_control"
EXAMPLE = "Once upon a time, 1,234 naïve cats 🐈 drank tea."
CONVERSATION = (
    {"role": "user", "content": "What is a token?"},
    {"role": "assistant", "content": "A piece of text with a number."},
    {"role": "user", "content": "How many are in this line?"},
)


def show(bench: Workbench, file: ModelFile) -> None:
    """Draw tokenizer and chat template, by the pool if it has this model, else by its vocabulary alone.

    If neither is available, the template is shown as it is in the file.
    """
    st.subheader("Tokenizer", anchor=False)
    source = _source(bench, file)
    if source is not None:
        _tokenizer(source, file)
    st.subheader("Chat template", anchor=False)
    if not file.chat_template:
        st.caption("This file has no chat template: write whole prompts in completion mode.")
        return
    _template(source, file.chat_template)


def _source(bench: Workbench, file: ModelFile) -> Source | None:
    """Return the pool or tokenizer for the model; None, with the reason on the page, if there is neither."""
    try:
        with st.spinner("Reading the vocabulary"):
            return bench.tokenizer_of(file.path)
    except EngineError as error:
        notice(error)
        return None


def _tokenizer(source: Source, file: ModelFile) -> None:
    text = st.text_area("Text", EXAMPLE, key=TEXT, max_chars=MAX_TEXT, height="content")
    has_control = st.toggle("Parse control tokens", key=CONTROL, help="A marker such as </s> counts as one token")
    typed_tokens(TEXT, text, model=readable(file.path), special=has_control)
    try:
        ids = source.tokenize(text, special=has_control)
    except EngineError as error:
        notice(error)
        return
    st.dataframe(
        tokens(source.vocabulary, ids), hide_index=True, key="playground_tokens", alt="Tokens of the text",
        column_config=number_columns.counts("position", "id"),
    )  # fmt: skip


def tokens(vocabulary: Vocabulary, ids: list[int]) -> pd.DataFrame:
    """Return one row per token; spaces and line breaks are shown as symbols, an incomplete character's byte as <F0>."""
    return pd.DataFrame(
        {
            "position": range(len(ids)),
            "id": ids,
            "text": [token_text(vocabulary.text(id)) for id in ids],
            "bytes": [vocabulary.pieces[id].hex(" ") for id in ids],
            "kind": ["control" if vocabulary.is_control(id) else "" for id in ids],
        }
    )


def _template(source: Source | None, template: str) -> None:
    """Draw a short conversation as the model receives it, and the template itself."""
    if source is not None:
        try:
            text, ids = source.render_chat(list(CONVERSATION))
            st.caption(f"A conversation of three turns becomes {counted(len(ids), 'token')}:")
            st.code(visible(text), language=None, wrap_lines=True)
        except EngineError as error:
            notice(error)
    with st.expander("Template", key="playground_template"):
        st.code(visible(template), language=None, wrap_lines=True)


def visible(text: str) -> str:
    """Return text of a file over several lines, without characters that would change how it is displayed."""
    return "\n".join(one_line(line) for line in text.splitlines())
