"""What a chat template gets: the messages of a new chat, and options besides them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.errors import ConfigError
from engine.validation import plain_text

_MESSAGES = '[{"role": "user", "content": "Hello"}]'


@dataclass(frozen=True)
class ChatOptions:
    """Options of rendering a chat.

    tools: JSON array of function tools, empty for none. variables: JSON object of further variables of the template,
    empty for none. continue_final_message: the text ends inside the last message, which the model continues.
    """

    tools: str = ""
    variables: str = ""
    add_generation_prompt: bool = True
    continue_final_message: bool = False


def chat_messages(text: str, system: str = "") -> list[dict[str, str]]:
    """Return the messages of a chat that begins with a person's `text`, after `system` where that is not empty."""
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": text}]


def given_messages(messages: object) -> list[dict[str, str]]:
    """Return the messages of a chat as plain texts. Raises ConfigError for what is no list of messages, or empty."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise ConfigError(f"messages = {messages!r}: must be a list such as {_MESSAGES}")
    given = list(messages)
    if not given:
        raise ConfigError(f"messages: is empty, must be a list such as {_MESSAGES}")
    for number, message in enumerate(given):
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise ConfigError(f"messages[{number}] = {message!r}: must have a role and content, as in {_MESSAGES}")
    return [{plain_text("name", name): plain_text(name, text) for name, text in one.items()} for one in given]
