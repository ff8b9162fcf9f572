"""Messages of a chat request: their fields, checked strictly, and what a chat template gets of them."""

from typing import Annotated, Any, Literal

import msgspec

from engine.api.openai.errors import refusal
from engine.api.openai.tools import MOST_CALLS


class Part(msgspec.Struct, frozen=True):
    """Part of a message's content; only texts are understood."""

    type: str
    text: str = ""


class MessageFunction(msgspec.Struct, frozen=True):
    """Function that the assistant called in an earlier message. arguments: JSON."""

    name: str
    arguments: str = ""


class MessageCall(msgspec.Struct, frozen=True):
    """Call of a tool in a message of the assistant."""

    function: MessageFunction
    id: str = ""
    type: Literal["function"] = "function"

    def plain(self) -> dict[str, Any]:
        """Return the call as chat templates expect it: arguments as an object, where they are one."""
        try:
            arguments: Any = msgspec.json.decode(self.function.arguments, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            arguments = self.function.arguments
        return {"id": self.id, "type": self.type, "function": {"name": self.function.name, "arguments": arguments}}


class ChatMessage(msgspec.Struct, frozen=True):
    """Message of a chat. tool_calls: of the assistant; tool_call_id: of the call that a tool's message answers."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: Annotated[list[MessageCall], msgspec.Meta(max_length=MOST_CALLS)] | None = None
    tool_call_id: str | None = None

    def plain(self) -> dict[str, str]:
        """Return role and text; calls as JSON, id and name where given. Raises ApiError for other content."""
        if isinstance(self.content, list):
            other = next((part.type for part in self.content if part.type != "text"), None)
            if other is not None:
                raise refusal(f"messages: content of type {other[:40]!r} is not supported; send text", "messages")
            content = "".join(part.text for part in self.content)
        else:
            content = self.content or ""
        plain = {"role": "system" if self.role == "developer" else self.role, "content": content}
        if self.tool_calls:
            plain["tool_calls"] = msgspec.json.encode([call.plain() for call in self.tool_calls]).decode()
        given = {"tool_call_id": self.tool_call_id, "name": self.name}
        return plain | {name: text for name, text in given.items() if text is not None}
