"""Token list of a sampling editor: biases and bans of single tokens, found by a search over the model's vocabulary."""

import html
import math
from typing import NamedTuple

import streamlit as st

from engine.errors import ConfigError, EngineError, sentence
from engine.files import named_path
from engine.specs import Sampling
from engine.vocabulary import Vocabulary
from engine.workbench import current
from pages.parts.labels import one_line, token_text
from pages.parts.notice import notice
from pages.parts.plain import plain

NAME = "logit_bias"
MOST_ROWS = 50
MOST_QUERY, MOST_TEXT = 200, 24
"""Characters of a query, and of a token's text in the list of those found."""
CHIP_WIDTH, BIAS_WIDTH = 230, 132


class Token(NamedTuple):
    """A token of the list, with its text as the vocabulary has it; "" until the vocabulary is known."""

    id: int
    text: str

    @property
    def label(self) -> str:
        """Its text with visible spaces, else its id."""
        return token_text(self.text) if self.text else f"token {self.id:,}"


class Origin(NamedTuple):
    """The vocabulary that the ids of a list belong to: its hash, and a model that has it."""

    hash: str
    model: str


def fill(sampling: Sampling, prefix: str, vocabulary: Vocabulary | None = None, model: str = "") -> None:
    """Put a logit bias on the screen; call only before the widgets are drawn, or in a callback.

    vocabulary: the one that its token ids belong to, None for that of the editor's model; model: a name for it.
    """
    biases = sampling.logit_bias
    st.session_state[prefix + "tokens"] = _tokens([token for token, _ in biases], vocabulary)
    st.session_state[prefix + "origin"] = Origin(vocabulary.hash, model) if vocabulary and biases else None
    for token, bias in biases:
        _put(prefix, token, bias)


def ban(token: int, prefix: str, vocabulary: Vocabulary | None = None, model: str = "") -> None:
    """Ban a token in the editor's draft; call in a callback.

    vocabulary, model: as for `fill`. Raises ConfigError if the list has tokens of another vocabulary, or the id is not
    in this one; EngineError if the vocabulary cannot be read.
    """
    state, here = st.session_state, vocabulary or _vocabulary(prefix)
    if not 0 <= token < len(here):
        raise ConfigError(f"token {token:,} is not in this vocabulary, which ends at {len(here) - 1:,}")
    tokens: tuple[Token, ...] = state[prefix + "tokens"]
    origin = state[prefix + "origin"] if tokens else None
    if origin is not None and origin.hash != here.hash:
        raise ConfigError(f"Biases and bans are of {origin.model}, which has another vocabulary: remove them first.")
    if origin is None:
        state[prefix + "origin"] = Origin(here.hash, model or _model_name(prefix))
    if token not in {one.id for one in tokens}:
        state[prefix + "tokens"] = *tokens, *_tokens([token], here)
    _put(prefix, token, -math.inf)


def read(prefix: str) -> dict[str, tuple[tuple[int, float], ...]]:
    """Return the logit bias on the screen as a parameter of Sampling; nothing if the list is empty.

    Raises ConfigError, which begins with "logit_bias", for tokens of another vocabulary.
    """
    tokens: tuple[Token, ...] = st.session_state[prefix + "tokens"]
    if not tokens:
        return {}
    if problem(prefix) is not None:
        raise ConfigError(f"{NAME} cannot be used as it is: see Constraints under More")
    return {NAME: tuple((token.id, _bias(prefix, token)) for token in tokens)}


def on_screen(prefix: str) -> tuple[object, ...]:
    """Return the list with its numbers, valid or not, for comparison."""
    state = st.session_state
    return tuple(
        (token.id, state[_key(prefix, "ban", token.id)], state[_key(prefix, "bias", token.id)])
        for token in state.get(prefix + "tokens", ())
    )


def problem(prefix: str) -> EngineError | None:
    """Return why the tokens of the list are not those of the editor's model; None if they are or none is loaded."""
    state = st.session_state
    if not state[prefix + "tokens"]:
        return None
    try:
        here = _vocabulary(prefix)
    except EngineError as error:
        return error.bare() if state.get(prefix + "model") else None  # without a loaded model nothing can run
    origin: Origin | None = state[prefix + "origin"]
    if origin is None:
        return _adopt(prefix, here)
    if origin.hash == here.hash:
        return None
    return ConfigError(
        f"These are tokens of {origin.model}. {_model_name(prefix)} has another vocabulary, in which their ids are "
        "other tokens: remove them, or use that model."
    )


def _adopt(prefix: str, here: Vocabulary) -> ConfigError | None:
    """Take the ids of the list as those of this vocabulary; return why they are not."""
    state = st.session_state
    ids = [token.id for token in state[prefix + "tokens"]]
    if max(ids) >= len(here):
        return ConfigError(f"Token {max(ids):,} is not in the vocabulary of {_model_name(prefix)}: remove it.")
    state[prefix + "tokens"] = _tokens(ids, here)
    state[prefix + "origin"] = Origin(here.hash, _model_name(prefix))
    return None


def show(prefix: str) -> None:
    """Draw the search and the list below it, with what is wrong with the list."""
    _search(prefix)
    found = problem(prefix)
    tokens: tuple[Token, ...] = st.session_state[prefix + "tokens"]
    if found is not None:
        notice(found)
    with st.container(gap="xsmall"):
        for token in tokens[:MOST_ROWS]:
            _row(prefix, token)
    if len(tokens) > 1:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            if len(tokens) > MOST_ROWS:
                st.caption(f"{len(tokens) - MOST_ROWS:,} more, which apply too.", width="content")
            st.button(
                "Remove all", type="tertiary", key=prefix + "unbias_all", on_click=st.session_state.update,
                args=({prefix + "tokens": ()},),
            )  # fmt: skip


def _row(prefix: str, token: Token) -> None:
    """Draw one token: its text and id, its bias or its ban, and the button that removes it."""
    is_banned = st.session_state[_key(prefix, "ban", token.id)]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.html(
            f'<span class="token-chip">{html.escape(one_line(token.label, MOST_TEXT))}</span> '
            f'<span class="token-id">{token.id:,}</span>',
            width=CHIP_WIDTH,
        )
        st.number_input(
            f"Bias of {plain(token.label, MOST_TEXT)}, nats", step=0.5, key=_key(prefix, "bias", token.id),
            width=BIAS_WIDTH, label_visibility="collapsed", disabled=is_banned, persist_state="session",
        )  # fmt: skip
        st.caption("nats", width="content")
        st.toggle("Ban", key=_key(prefix, "ban", token.id), persist_state="session", width="content")
        st.button(
            "Remove", type="tertiary", key=_key(prefix, "unbias", token.id), on_click=_remove, args=(prefix, token.id),
        )  # fmt: skip


@st.fragment
def _search(prefix: str) -> None:
    """Draw the search field and the tokens found; choosing one bans it, and draws the page again."""
    state = st.session_state
    if state.pop(prefix + "chosen", False):
        st.rerun()
    query = st.text_input(
        "Bias or ban a token", key=prefix + "query", max_chars=MOST_QUERY, live=True, icon=":material/search:",
        placeholder="Text, id or name of a token",
        help="A bias is added to the token's logit before sampling, in nats; a banned token is never drawn. "
        "\\n is a line break, \\t a tab; a leading space may be left out.",
    )  # fmt: skip
    if not query:
        return
    try:
        vocabulary = _vocabulary(prefix)
    except EngineError as error:
        st.caption(plain(sentence(error)))
        return
    found = vocabulary.search(query.replace("\\n", "\n").replace("\\t", "\t"))
    listed = {token.id for token in state[prefix + "tokens"]}
    tokens = {token.id: token for token in _tokens(found.tokens, vocabulary) if token.id not in listed}
    if tokens:
        st.pills(
            "Tokens found", list(tokens), key=prefix + "tokens_found", label_visibility="collapsed", on_change=_choose,
            args=(prefix,), format_func=lambda id: f"{plain(tokens[id].label, MOST_TEXT)} · {id:,}",
        )  # fmt: skip
    if found.num_more:
        st.caption(f"{found.num_more:,} more contain it: type more of the token.")
    elif not tokens:
        st.caption("All tokens that contain it are in the list." if found.tokens else "No token contains it.")


def _choose(prefix: str) -> None:
    """Ban the token that was chosen in the search."""
    state = st.session_state
    token, state[prefix + "tokens_found"] = state[prefix + "tokens_found"], None
    if token is not None:
        ban(token, prefix)
        state[prefix + "chosen"] = True


def _remove(prefix: str, token: int) -> None:
    tokens = st.session_state[prefix + "tokens"]
    st.session_state[prefix + "tokens"] = tuple(one for one in tokens if one.id != token)


def _put(prefix: str, token: int, bias: float) -> None:
    """Set the widgets of a token."""
    st.session_state[_key(prefix, "ban", token)] = bias == -math.inf
    st.session_state[_key(prefix, "bias", token)] = 0.0 if bias == -math.inf else bias


def _bias(prefix: str, token: Token) -> float:
    if st.session_state[_key(prefix, "ban", token.id)]:
        return -math.inf
    bias: float = st.session_state[_key(prefix, "bias", token.id)]
    return bias


def _tokens(ids: list[int] | tuple[int, ...], vocabulary: Vocabulary | None) -> tuple[Token, ...]:
    return tuple(Token(id, vocabulary.text(id) if vocabulary else "") for id in ids)


def _vocabulary(prefix: str) -> Vocabulary:
    """Return the vocabulary of the editor's model: the file that a variant names, else the loaded one."""
    model: str = st.session_state.get(prefix + "model") or ""
    return current().vocabulary_of(named_path(model) if model else None)


def _model_name(prefix: str) -> str:
    """Return a name for the editor's model."""
    state = current().model
    path: str = st.session_state.get(prefix + "model") or ""
    return path.rpartition("/")[2] or (state.identity.name if state.identity else "the loaded model")


def _key(prefix: str, name: str, token: int) -> str:
    return f"{prefix}{name}_{token}"
