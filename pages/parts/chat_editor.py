"""Chat editor: the messages of a conversation, and a preview of them rendered by the model's template."""

import html

import streamlit as st

from engine.errors import ConfigError, EngineError
from engine.protocol import Engine
from engine.workbench.trials import Message
from pages.parts.notice import notice
from pages.parts.plain import plain

ROLES = ("system", "user", "assistant")
KEY = "lab_messages"
STYLE = """
<style>
.rendered { font-family: "Source Code Pro", monospace; font-size: 0.87rem; line-height: 1.9; white-space: pre-wrap; }
.rendered span { border-radius: 2px; margin-right: 2px; outline: 1px solid #8884; }
.rendered .control { opacity: 0.6; }
</style>
"""


def show(engine: Engine | None) -> None:
    """Draw the messages, the buttons that add and remove them, and the rendered template as tokens."""
    numbers = st.session_state.setdefault(KEY, [0])
    for position, number in enumerate(numbers):
        _message(number, is_only=len(numbers) == 1, is_last=position == len(numbers) - 1)
    st.button("Add message", icon=":material/add:", type="tertiary", key="lab_add", on_click=_add)
    if engine is not None:
        _rendered(engine)


def _message(number: int, *, is_only: bool, is_last: bool) -> None:
    role = st.session_state.setdefault(_role(number), "user")
    roles = ROLES if role in ROLES else (*ROLES, role)  # a call of the API may have others
    with st.container(horizontal=True, vertical_alignment="top", gap="small"):
        st.selectbox("Role", roles, key=_role(number), width=130, label_visibility="collapsed", persist_state="session")
        st.text_area(
            "Message", key=_content(number), height=90 if is_last else 70, label_visibility="collapsed",
            placeholder="Write a message", persist_state="session",
        )  # fmt: skip
        if not is_only:
            st.button(
                ":material/close:", type="tertiary", key=f"lab_remove_{number}", help="Remove this message",
                on_click=_remove, args=(number,),
            )  # fmt: skip


def _rendered(engine: Engine) -> None:
    with st.expander("Rendered by the model's template", key="lab_rendered"):
        try:
            _, ids = engine.render_chat(list(read()))
        except ConfigError as error:
            st.caption(plain(str(error)))
            return
        except EngineError as error:
            notice(error)
            return
        vocabulary = engine.vocabulary
        spans = "".join(_span(vocabulary.text(token), vocabulary.is_control(token)) for token in ids)
        st.html(f'{STYLE}<div class="rendered">{spans}</div>')
        st.caption(f"{len(ids):,} of {engine.capabilities.n_ctx:,} tokens")


def _span(text: str, is_control: bool) -> str:
    return f'<span class="{"control" if is_control else "text"}">{html.escape(text)}</span>'


def on_screen() -> tuple[Message, ...]:
    """Return the messages on the screen, without an empty one at the end."""
    state = st.session_state
    messages = [{"role": state[_role(n)], "content": state.get(_content(n), "")} for n in state.get(KEY, [])]
    if messages and not messages[-1]["content"].strip():
        messages.pop()
    return tuple(messages)


def read() -> tuple[Message, ...]:
    """Return the messages on the screen. Raises ConfigError if there is no message to answer."""
    messages = on_screen()
    if not messages or messages[-1]["role"] == "assistant":
        raise ConfigError("There is no message to answer: write one, then run.")
    return messages


def fill(messages: tuple[Message, ...]) -> None:
    """Put a conversation on the screen; call only before the widgets are drawn, or in a callback."""
    state = st.session_state
    first = max(state.get(KEY, [0]), default=0) + 1
    state[KEY] = list(range(first, first + len(messages)))
    for number, message in zip(state[KEY], messages, strict=True):
        state[_role(number)], state[_content(number)] = message["role"], message["content"]


def add_answer(text: str) -> None:
    """Append the model's answer to the messages, and an empty message for the next turn."""
    messages = (*on_screen(), {"role": "assistant", "content": text}, {"role": "user", "content": ""})
    fill(messages)


def _add() -> None:
    numbers = st.session_state[KEY]
    numbers.append(max(numbers) + 1)


def _remove(number: int) -> None:
    """Remove a message, unless it is the last one: a button may be pressed twice before the page is redrawn."""
    st.session_state[KEY] = [each for each in st.session_state[KEY] if each != number] or [number]


def _role(number: int) -> str:
    return f"lab_role_{number}"


def _content(number: int) -> str:
    return f"lab_content_{number}"
