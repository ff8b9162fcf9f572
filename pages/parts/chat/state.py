"""Session state of a chat: the conversation on the screen, the message being written, and the one being edited."""

from collections.abc import Sequence

import streamlit as st

from engine.errors import ConfigError
from engine.workbench.trials import Message, Trial

SYSTEM, MESSAGE, EDITED, EDIT = "lab_system", "lab_message", "lab_edited", "lab_edit"
ASKED, ANSWER = "lab_asked", "lab_answer"
NO_MESSAGE = "There is no message to answer: write one, then send it."


def follow(trial: Trial | None) -> None:
    """Take the conversation of the trial on the screen; one that is no chat has none."""
    state = st.session_state
    messages = trial.draft.messages if trial is not None else ()
    state[ASKED] = tuple(messages[_num_system(messages) :])
    completion = trial.completion if trial is not None and messages else None
    state[ANSWER] = None if completion is None else completion.text
    for name in (SYSTEM, MESSAGE):
        state.setdefault(name, "")
    if state.get(EDITED) is not None and state[EDITED] not in editable():
        state[EDITED] = None


def fill(messages: Sequence[Message]) -> None:
    """Put the system prompt of a conversation into its field; call only before it is drawn, or in a callback."""
    st.session_state[SYSTEM] = messages[0]["content"] if _num_system(messages) else ""
    st.session_state[EDITED] = None


def _num_system(messages: Sequence[Message]) -> int:
    """Return 1 if the conversation begins with a system prompt, else 0."""
    return int(bool(messages) and messages[0].get("role") == "system")


def shown() -> tuple[Message, ...]:
    """Return the messages of the conversation, without the system prompt and without the newest answer."""
    messages: tuple[Message, ...] = st.session_state.get(ASKED, ())
    return messages


def editable() -> tuple[int, ...]:
    """Return the positions among `shown` of the user's own messages."""
    return tuple(number for number, message in enumerate(shown()) if message.get("role") == "user")


def is_written() -> bool:
    """Return True if the field of the next message has text."""
    return bool(st.session_state.get(MESSAGE, "").strip())


def on_screen() -> tuple[Message, ...]:
    """Return the messages that a run would answer: with the one being written, else those already answered."""
    return _with_system((*_answered(), _own(st.session_state[MESSAGE])) if is_written() else shown())


def written() -> tuple[Message, ...]:
    """Return the conversation with the message being written. Raises ConfigError where none is."""
    if not is_written():
        raise ConfigError(NO_MESSAGE)
    return on_screen()


def asked() -> tuple[Message, ...]:
    """Return the messages that the newest answer answers, with the system prompt on the screen."""
    return _with_system(shown())


def edited() -> tuple[Message, ...]:
    """Return the conversation up to the message being edited, as it now reads. Raises ConfigError where it is empty."""
    position, text = st.session_state.get(EDITED), st.session_state.get(EDIT, "")
    if position is None or not text.strip():
        raise ConfigError(NO_MESSAGE)
    return _with_system((*shown()[:position], _own(text)))


def begin_edit(position: int) -> None:
    """Edit one of the user's own messages; call in a callback."""
    st.session_state[EDITED], st.session_state[EDIT] = position, shown()[position]["content"]


def is_editing() -> bool:
    """Return True while one of the user's own messages is being edited: Ctrl+Enter then sends that one."""
    return st.session_state.get(EDITED) is not None


def end_edit() -> None:
    """Leave the message as it was; call in a callback."""
    st.session_state[EDITED] = None


def sent() -> None:
    """Empty the fields whose text has been sent; call in a callback."""
    st.session_state[MESSAGE], st.session_state[EDITED] = "", None


def _answered() -> tuple[Message, ...]:
    answer = st.session_state.get(ANSWER)
    return shown() if answer is None else (*shown(), {"role": "assistant", "content": answer})


def _own(text: str) -> Message:
    return {"role": "user", "content": text}


def _with_system(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    system = st.session_state.get(SYSTEM, "")
    return ({"role": "system", "content": system}, *messages) if system.strip() and messages else messages
