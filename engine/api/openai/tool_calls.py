"""Calls of tools in the text of an answer: found in a model's own form, or in the one that a grammar holds. Pure."""

import json
import re
from collections.abc import Collection
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([A-Za-z0-9_-]+)"\s*,\s*"arguments"\s*:\s*(?=\{)')
_LONGEST_HEAD = 1024
"""Characters within which a call that a grammar holds comes to its arguments."""
_SPACES = re.compile(r"\s*+")


class Content(NamedTuple):
    """Text of the answer itself."""

    text: str


class CallBegins(NamedTuple):
    """Beginning of a call of this function."""

    name: str


class Arguments(NamedTuple):
    """Piece of the JSON of the arguments of the call that began last."""

    text: str


Piece = Content | CallBegins | Arguments


class ToolForm(StrEnum):
    """How an answer writes a call. HELD: only one call, by a grammar; the others are models' own forms."""

    HELD = "held"
    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"


class _Marks(NamedTuple):
    """opening: begins a list of calls; closing: ends it, where there is one; between: characters around its calls."""

    opening: str
    closing: str
    between: str


_MARKS = {
    ToolForm.HERMES: _Marks("<tool_call>", "</tool_call>", ""),
    ToolForm.LLAMA: _Marks("<|python_tag|>", "", ";"),
    ToolForm.MISTRAL: _Marks("[TOOL_CALLS]", "", "[,]"),
}
CONTROL_MARKS = frozenset(mark for marks in _MARKS.values() for mark in marks[:2] if mark)
"""Texts that a model writes as control tokens, which have no text of their own."""


_OTHER_FORMS = ("<function=", "<arg_key>", "<tool_calls>", "[ARGS]")
"""Parts of calls in forms that no parser here knows, which templates teach beside the marks above."""


def form_of(template: str) -> ToolForm | None:
    """Return the form that a chat template teaches, None for a template that takes no tools or teaches another form."""
    if "tools" not in template or any(part in template for part in _OTHER_FORMS):
        return None
    for form in (ToolForm.HERMES, ToolForm.MISTRAL):
        if _MARKS[form].opening in template:
            return form
    is_llama = "<|python_tag|>" in template or ('"parameters"' in template and '"name"' in template)
    return ToolForm.LLAMA if is_llama else None


class Parser(Protocol):
    """Parser of an answer as it grows. has_calls: whether it has found a whole call."""

    @property
    def has_calls(self) -> bool: ...

    def push(self, text: str) -> list[Piece]: ...

    def end(self) -> list[Piece]: ...


def parser_of(form: ToolForm, names: Collection[str], most: int) -> Parser:
    """Return a parser. names: functions that may be called; most: calls, later ones are dropped."""
    return HeldParser() if form == ToolForm.HELD else FormParser(_MARKS[form], names, most, form == ToolForm.LLAMA)


class HeldParser:
    """Parser of one call that a grammar holds; its arguments are passed on as they come, what is no call as content."""

    def __init__(self) -> None:
        self._held, self._balance = "", Balance()
        self._is_content = self._is_call = False

    @property
    def has_calls(self) -> bool:
        """Whether its call is whole: one that a stop string or a person cuts short cannot be made."""
        return self._balance.is_closed

    def push(self, text: str) -> list[Piece]:
        """Return what more text decides."""
        if self._is_content:
            return [Content(text)]
        self._held += text
        pieces: list[Piece] = []
        if not self._is_call:
            found = _HEAD.match(self._held)
            if found is None and len(self._held) > _LONGEST_HEAD:
                self._is_content = True
                pieces.append(Content(self._held))
                self._held = ""
            if found is None:
                return pieces
            pieces.append(CallBegins(found[1]))
            self._is_call, self._held = True, self._held[found.end() :]
        size = self._balance.push(self._held)
        if size:
            pieces.append(Arguments(self._held[:size]))
        self._held = ""
        return pieces

    def end(self) -> list[Piece]:
        """Return what is left at the end: a beginning that was cut short is content."""
        return [Content(self._held)] if self._held else []


class FormParser:
    """Parser of calls in a model's own form. What is no complete call of a known function stays content."""

    def __init__(self, marks: "_Marks", names: Collection[str], most: int, begins_bare: bool) -> None:
        self._marks, self._names, self._most, self._num_calls = marks, names, most, 0
        self._held = self._raw = ""
        self._spaces: list[str] = []
        self._is_content = False
        self._balance, self._place = Balance(), 0
        self._step = self._start if begins_bare else self._before

    @property
    def has_calls(self) -> bool:
        """Whether there are calls, which are whole: others stay content."""
        return self._num_calls > 0

    def push(self, text: str) -> list[Piece]:
        """Return what more text decides."""
        self._held += text
        pieces: list[Piece] = []
        while self._step(pieces):
            pass
        return pieces

    def end(self) -> list[Piece]:
        """Return what is left at the end: calls that were cut short are content."""
        pieces: list[Piece] = []
        if self._step != self._between or self._is_content:
            self._say(pieces, self._raw + self._held)
        if self._spaces and not self._num_calls:
            pieces.append(Content("".join(self._spaces)))
        return pieces

    def _start(self, _pieces: list[Piece]) -> bool:
        """Take an answer that begins with an object for a call."""
        self._place = _past_spaces(self._held, self._place)
        if self._place == len(self._held):
            return False
        if self._held[self._place] == "{":
            self._open("")
        else:
            self._step = self._before
        return True

    def _before(self, pieces: list[Piece]) -> bool:
        """Pass text on, up to the mark that opens calls."""
        mark = self._marks.opening
        place = self._held.find(mark)
        if place < 0:
            self._say(pieces, self._taken(len(self._held) - overlap(self._held, mark)))
            return False
        self._say(pieces, self._taken(place))
        self._open(self._taken(len(mark)))
        return True

    def _between(self, pieces: list[Piece]) -> bool:
        """Pass over what stands around calls, up to an object or the end of the list."""
        passed = (at for at, one in enumerate(self._held) if not (one.isspace() or one in self._marks.between))
        self._raw += self._taken(next(passed, len(self._held)))
        closing = self._marks.closing
        if not self._held or (closing.startswith(self._held) and self._held != closing):
            return False
        if self._held[0] == "{":
            self._balance, self._place, self._step = Balance(), 0, self._object
            return True
        if closing and self._held.startswith(closing):
            self._raw += self._taken(len(closing))
        self._close(pieces)
        return True

    def _object(self, pieces: list[Piece]) -> bool:
        """Wait for the end of an object; pass it on as a call or as content."""
        self._place += self._balance.push(self._held[self._place :])
        if not self._balance.is_closed:
            return False
        text = self._taken(self._place)
        call = _call(text, self._names)
        if call is None:
            self._raw, self._is_content = self._raw + text, True
            self._close(pieces)
            return True
        if self._num_calls < self._most:
            pieces += [CallBegins(call[0]), Arguments(call[1])]
            self._num_calls += 1
        self._raw, self._spaces, self._is_content, self._step = "", [], False, self._between
        return True

    def _open(self, mark: str) -> None:
        self._raw, self._is_content, self._step = mark, True, self._between

    def _close(self, pieces: list[Piece]) -> None:
        """End a list of calls."""
        if self._is_content:
            self._say(pieces, self._raw)
        self._raw, self._step = "", self._before

    def _taken(self, size: int) -> str:
        taken, self._held = self._held[:size], self._held[size:]
        return taken

    def _say(self, pieces: list[Piece], text: str) -> None:
        """Pass content on; spaces at its end wait, as those around calls do not belong to it."""
        kept = text.rstrip()
        if kept:
            pieces.append(Content("".join([*self._spaces, kept])))
            self._spaces = []
        if len(kept) < len(text):
            self._spaces.append(text[len(kept) :])


class Balance:
    """Scanner of one JSON object as it grows, for the bracket that closes it."""

    def __init__(self) -> None:
        self._depth, self._is_text, self._is_escaped = 0, False, False
        self.is_closed = False

    def push(self, text: str) -> int:
        """Return how many of these characters belong to the object."""
        if self.is_closed:
            return 0
        for place, one in enumerate(text, 1):
            if self._is_escaped:
                self._is_escaped = False
            elif self._is_text:
                self._is_escaped, self._is_text = one == "\\", one != '"'
            elif one == '"':
                self._is_text = True
            elif one in "{[":
                self._depth += 1
            elif one in "}]":
                self._depth -= 1
                if not self._depth:
                    self.is_closed = True
                    return place
        return len(text)


def overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of `text` with which `mark` begins."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if mark.startswith(text[-size:])), 0)


def _call(text: str, names: Collection[str]) -> tuple[str, str] | None:
    """Return function and arguments, as written, of a call; None where the object is no call of a known function."""
    try:
        members = _members(text)
    except (ValueError, RecursionError):
        return None
    (name, _), (arguments, written) = (
        members.get("name", (None, "")),
        members.get("arguments", members.get("parameters", (None, ""))),
    )
    if not isinstance(name, str) or name not in names or not isinstance(arguments, dict):
        return None
    return name, written


def _members(text: str) -> dict[str, tuple[Any, str]]:
    """Return the members of a JSON object by name: value, and the text of it. Raises ValueError for broken JSON."""
    members: dict[str, tuple[Any, str]] = {}
    place = _after(text, 0, "{")
    while not text.startswith("}", place):
        name, place = _JSON.raw_decode(text, place)
        start = _after(text, place, ":")
        value, place = _JSON.raw_decode(text, start)
        if not isinstance(name, str):
            raise ValueError("a name must be a string")
        members[name] = value, text[start:place]
        place = _past_spaces(text, place)
        if not text.startswith("}", place):
            place = _after(text, place, ",")
    return members


def _after(text: str, place: int, mark: str) -> int:
    """Return the place behind a mark and the spaces around it. Raises ValueError where it is not there."""
    place = _past_spaces(text, place)
    if not text.startswith(mark, place):
        raise ValueError(f"{mark} is missing at {place}")
    return _past_spaces(text, place + len(mark))


def _past_spaces(text: str, place: int) -> int:
    return _SPACES.match(text, place).end()  # type: ignore[union-attr]


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_constant)
