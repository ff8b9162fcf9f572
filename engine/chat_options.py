"""What a chat template gets besides the messages."""

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
