"""Constraints of a sampling editor: a JSON schema or grammar that the text must follow, and the list of tokens."""

from typing import Any, NamedTuple

import streamlit as st

from engine.errors import ConfigError, EngineError
from engine.specs import Sampling
from engine.vocabulary import Vocabulary
from engine.workbench import current
from pages.parts import token_bias
from pages.parts.labels import error_text
from pages.parts.notice import notice

NONE, SCHEMA, GRAMMAR = "None", "JSON schema", "Grammar (GBNF)"
NAMES = {SCHEMA: "json_schema", GRAMMAR: "grammar"}
"""Parameter of each kind of constraint."""
LABELS = {"json_schema": "JSON schema", "grammar": "Grammar", token_bias.NAME: "Logit bias"}


class Example(NamedTuple):
    """A constraint that one click fills in."""

    label: str
    kind: str
    text: str


EXAMPLES = (
    Example("Enum", SCHEMA, '{"enum": ["positive", "neutral", "negative"]}'),
    Example(
        "Object",
        SCHEMA,
        """{
  "type": "object",
  "properties": {
    "name": {"type": "string", "maxLength": 40},
    "is_animal": {"type": "boolean"}
  },
  "required": ["name", "is_animal"]
}""",
    ),
    Example("Yes or no", GRAMMAR, 'root ::= "yes" | "no"'),
)


def show(prefix: str) -> None:
    """Draw the choice of a constraint with its text, and what is wrong with the text; then the list of tokens."""
    with st.container():  # of its own, so that the search below, a fragment, keeps its place whatever is drawn here
        _text(prefix)
    token_bias.show(prefix)


def _text(prefix: str) -> None:
    state = st.session_state
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.segmented_control(
            "The text must follow", (NONE, *NAMES), key=prefix + "constraint", required=True,
            label_visibility="collapsed", persist_state="session",
        )  # fmt: skip
        st.caption("Examples", width="content")
        for number, example in enumerate(EXAMPLES):
            st.button(
                example.label, type="tertiary", key=f"{prefix}example_{number}", on_click=_fill_in,
                args=(prefix, example), help=f"Fill in a {example.kind}",
            )  # fmt: skip
    kind = state[prefix + "constraint"]
    if kind != NONE:
        st.text_area(
            kind, key=prefix + NAMES[kind], height=170, label_visibility="collapsed", persist_state="session",
            placeholder="A JSON schema" if kind == SCHEMA else 'root ::= "yes" | "no"',
        )  # fmt: skip
        with st.spinner("Checking…", show_time=True):
            found = problem(prefix)
        if found is not None:
            notice(error_text(found, LABELS))


def fill(sampling: Sampling, prefix: str, vocabulary: Vocabulary | None = None, model: str = "") -> None:
    """Put the constraints of a sampling on the screen; call only before the widgets are drawn, or in a callback.

    vocabulary, model: as for `token_bias.fill`.
    """
    state = st.session_state
    state[prefix + "constraint"] = SCHEMA if sampling.json_schema else GRAMMAR if sampling.grammar else NONE
    for name in NAMES.values():
        state[prefix + name] = getattr(sampling, name)
    token_bias.fill(sampling, prefix, vocabulary, model)


def read(prefix: str) -> dict[str, Any]:
    """Return the constraints on the screen as parameters of Sampling, only those that are set.

    Raises ConfigError, which begins with the parameter's name, if they cannot be used; the tab says why.
    """
    name, text = _chosen(prefix)
    if problem(prefix) is not None:
        raise ConfigError(f"{name} cannot be used as it is: see Constraints under More")
    return ({name: text} if text else {}) | token_bias.read(prefix)


def problem(prefix: str) -> EngineError | None:
    """Return why the text on the screen is no constraint, as submitting it would; None if it is, or no model is loaded.

    The outcome for the last text is kept in the session state.
    """
    name, text = _chosen(prefix)
    engine, state = current().model.engine, st.session_state
    if not text or engine is None:
        return None
    asked = engine.model, name, text
    known = state.get(prefix + "checked")
    if known is not None and known[0] == asked:
        error: EngineError | None = known[1]
        return error
    try:
        engine.check_sampling(Sampling.from_dict({name: text}))
    except ConfigError as refused:
        state[prefix + "checked"] = asked, refused.bare()
        return refused.bare()
    except EngineError:  # the checks are busy, or the model is being replaced: checked again next time
        return None
    state[prefix + "checked"] = asked, None
    return None


def num_changed(prefix: str) -> int:
    """Return how many constraints are set: the text, and the list of tokens."""
    return bool(_chosen(prefix)[1]) + bool(st.session_state[prefix + "tokens"])


def on_screen(prefix: str) -> tuple[object, ...]:
    """Return the constraints on the screen, valid or not, for comparison."""
    return (*_chosen(prefix), *token_bias.on_screen(prefix))


def _chosen(prefix: str) -> tuple[str, str]:
    """Return the parameter of the chosen constraint and its text, both empty for none."""
    name = NAMES.get(st.session_state.get(prefix + "constraint", NONE), "")
    text: str = st.session_state[prefix + name] if name else ""
    return (name, text) if text.strip() else ("", "")


def _fill_in(prefix: str, example: Example) -> None:
    st.session_state[prefix + "constraint"] = example.kind
    st.session_state[prefix + NAMES[example.kind]] = example.text
