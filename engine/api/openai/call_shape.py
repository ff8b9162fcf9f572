"""Calls of tools in OpenAI's shapes: messages and deltas, from the text of an answer."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from engine.api.openai.tool_calls import CONTROL_MARKS, Arguments, CallBegins, Content, Piece, ToolForm, parser_of
from engine.api.openai.tools import ToolUse
from engine.results import Completion
from engine.vocabulary import Vocabulary

ID_DIGITS = 24
MISTRAL_ID_DIGITS = 9
"""Mistral's templates accept ids of no other length."""


class CallShape:
    """Shape of one answer, which may call tools; `trial`: its trial's id, from which those of its calls are made."""

    def __init__(self, trial: str, use: ToolUse) -> None:
        self._trial, self._form = trial, use.form
        self._parser = None if use.form is None else parser_of(use.form, use.names, use.most)
        self._number = -1

    @property
    def is_held(self) -> bool:
        """Whether a grammar holds the answer to a call."""
        return self._form == ToolForm.HELD

    def finish(self, reason: str) -> str:
        """Return why the answer ended."""
        return "tool_calls" if reason == "stop" and self._parser is not None and self._parser.has_calls else reason

    def message(self, text: str) -> dict[str, Any]:
        """Return content and calls of the whole text."""
        if self._parser is None:
            return {"content": text}
        calls: list[dict[str, Any]] = []
        content = ""
        for piece in [*self._parser.push(text), *self._parser.end()]:
            match piece:
                case Content():
                    content += piece.text
                case CallBegins():
                    calls.append(self._call(piece, len(calls)))
                case Arguments():
                    calls[-1]["function"]["arguments"] += piece.text
        return {"content": content or None, "tool_calls": calls} if calls else {"content": content}

    def deltas(self, text: str, *, is_end: bool) -> list[dict[str, Any]]:
        """Return the deltas of more text; one of plain text even where it is empty, except at the end."""
        if self._parser is None:
            return [{"content": text}] if text or not is_end else []
        pieces = self._parser.push(text)
        return [self._delta(piece) for piece in [*pieces, *(self._parser.end() if is_end else ())]]

    def _delta(self, piece: Piece) -> dict[str, Any]:
        match piece:
            case Content():
                return {"content": piece.text}
            case CallBegins():
                self._number += 1
                return {"tool_calls": [{"index": self._number, **self._call(piece, self._number)}]}
            case Arguments():
                return {"tool_calls": [{"index": self._number, "function": {"arguments": piece.text}}]}

    def _call(self, begins: CallBegins, number: int) -> dict[str, Any]:
        digits = f"{(UUID(self._trial).int + number) % (1 << 128):032x}"
        is_mistral = self._form == ToolForm.MISTRAL
        id = digits[-MISTRAL_ID_DIGITS:] if is_mistral else f"call_{digits[-ID_DIGITS:]}"
        return {"id": id, "type": "function", "function": {"name": begins.name, "arguments": ""}}


def marks_of(vocabulary: Vocabulary) -> dict[int, str]:
    """Return the names, by id, of the control tokens that mark calls."""
    return {
        token: name
        for token, name in vocabulary.names.items()
        if name in CONTROL_MARKS and not vocabulary.pieces[token] and not vocabulary.is_end(token)
    }


def text_of(done: Completion, marks: Mapping[int, str]) -> str:
    """Return the text of an answer up to its stop string, with the names of the control tokens in `marks`."""
    if not any(token in marks for token in done.ids):
        return done.text
    num_cut = sum(len(step.text) for step in done.steps) - len(done.text)
    whole = "".join(marks.get(step.id, "") + step.text for step in done.steps)
    return whole[: len(whole) - max(num_cut, 0)]
