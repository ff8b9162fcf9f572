"""What a chat template gets: the messages of a new chat, and options besides them."""

from dataclasses import dataclass


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
