"""Grammars that read the same characters in ever more ways, found by following the characters that most ways can read.

llama.cpp follows each token along every way, so that an ambiguous loop takes time exponential in a token's length, in
one call that nothing can interrupt.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from engine.errors import ConfigError
from engine.llama.gbnf import Alternatives, Item, Rules, Sequence, Terminal

MAX_READINGS = 3_000_000
"""Two choices at each of 16 characters, and a third at some, which careless grammars have, stay below it."""
MAX_STACKS = 2000
NUM_CHARACTERS = 16
"""How far each place is followed: longer tokens are rare."""
MAX_STEPS = 30_000
"""Places and characters looked at in a grammar, in about 0.1 s; the rest is not followed. The pool also ends a worker
that stands still."""
MAX_UNFINISHED = 10_000
"""Readings that may be reached when the steps are used up."""
_PATIENCE = 3

_CHARACTER = re.compile(r"\\x(?P<x>..)|\\u(?P<u>....)|\\U(?P<U>.{8})|\\(?P<escape>.)|(?P<plain>.)", re.DOTALL)
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n"}
_END = -1


class _Class(NamedTuple):
    """A terminal of one character: the ranges of code points that it matches, or with `is_not` does not match."""

    ranges: tuple[tuple[int, int], ...]
    is_not: bool = False

    def matches(self, point: int) -> bool:
        return any(low <= point <= high for low, high in self.ranges) != self.is_not


class _Place(NamedTuple):
    """A stack of the parser: the item at `index` was read `times`, `parent` is the rest of the stack."""

    sequence: int
    position: int
    times: int
    parent: int


Ways = dict[tuple[_Class, int], int]
"""How many ways lead to each class of characters, with the place behind it."""


def check(rules: Rules) -> None:
    """Raise ConfigError where a rule reads the same NUM_CHARACTERS characters in too many ways."""
    parser = _Parser(rules)
    for name, alternatives in rules.items():
        for start in (alternatives, *_loops(alternatives)):
            try:
                _follow(parser, start)
            except _TooMany as error:
                raise ConfigError(
                    f"is ambiguous: rule {name} can read the same few characters in more than {error} ways, the most "
                    "allowed; write it so that the next character says which alternative it is"
                ) from None
            except _NoStepsLeft:
                return


def _follow(parser: "_Parser", start: Alternatives) -> None:
    ways = parser.begin(start)
    most = last_growth = 0
    for num_read in range(1, NUM_CHARACTERS + 1):
        if not ways or num_read - last_growth > _PATIENCE:
            return
        ways = parser.read(ways)
        num = sum(ways.values())
        if num > most:
            most, last_growth = num, num_read


def _loops(alternatives: Alternatives) -> Iterator[Alternatives]:
    """Everything repeated, as a rule of its own."""
    for items in alternatives:
        for item in items:
            if item.high != 1:
                yield [[item]]
            if isinstance(item.node, list):
                yield from _loops(item.node)


class _TooMany(Exception):
    """A limit, as text."""


class _NoStepsLeft(Exception):
    """MAX_STEPS places were looked at."""


class _Parser:
    """The stacks of llama.cpp's grammar parser, each known by a number; raises _TooMany and _NoStepsLeft."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._num_readings = self._num_steps = 0
        self._sequences: list[Sequence] = []
        self._of_sequence: dict[int, int] = {}
        self._places: list[_Place] = []
        self._of_place: dict[_Place, int] = {}
        self._reachable: dict[int, list[tuple[_Class, int]]] = {}

    def begin(self, alternatives: Alternatives) -> Ways:
        """The ways into these."""
        ways: Ways = {}
        for place in self._entered(alternatives, _END):
            for way in self._next(place):
                ways[way] = ways.get(way, 0) + 1
        return ways

    def read(self, ways: Ways) -> Ways:
        """The ways behind the character that most of them can read."""
        best = self._most_read(ways)
        following: Ways = {}
        self._num_readings = 0
        for (kind, behind), num in ways.items():
            if kind.matches(best):
                reached = self._next(behind)
                for way in reached:
                    following[way] = following.get(way, 0) + num
                self._num_readings += num * len(reached)
                if self._num_readings > MAX_READINGS:
                    raise _TooMany(f"{MAX_READINGS:,}")
                if len(following) > MAX_STACKS:
                    raise _TooMany(f"{MAX_STACKS:,}")
        return following

    def _most_read(self, ways: Ways) -> int:
        kinds: dict[_Class, int] = {}
        for (kind, _), num in ways.items():
            kinds[kind] = kinds.get(kind, 0) + num
        points = {point for kind in kinds for point in _examples(kind)}
        self._num_steps += len(points) * len(kinds)
        return max(points, key=lambda point: sum(num for kind, num in kinds.items() if kind.matches(point)), default=0)

    def _next(self, start: int) -> list[tuple[_Class, int]]:
        """The classes of characters that can follow a place, each with the place behind it."""
        if start in self._reachable:
            return self._reachable[start]
        if self._num_steps > MAX_STEPS:
            raise _TooMany(f"{MAX_UNFINISHED:,}") if self._num_readings > MAX_UNFINISHED else _NoStepsLeft
        found: list[tuple[_Class, int]] = []
        seen, todo = {start}, [start]
        while todo:
            number = todo.pop()
            if number == _END:
                continue
            place = self._places[number]
            items = self._sequences[place.sequence]
            item = items[place.position]
            reached = []
            if place.times >= item.low:
                reached.append(self._number(place._replace(position=place.position + 1, times=0)))
            if item.high is None or place.times < item.high:
                times = place.times + 1 if item.high is not None else min(place.times + 1, item.low)
                behind = self._number(place._replace(times=times))
                for terminal in self._terminals(item):
                    found.append((terminal, behind))
                reached += self._entered(self._alternatives(item), behind)
            new = [one for one in reached if one not in seen]
            seen.update(new)
            todo += new
        self._num_steps += len(seen)
        self._reachable[start] = found
        return found

    def _terminals(self, item: Item) -> list[_Class]:
        one = _characters(item.node.text) if isinstance(item.node, Terminal) else []
        return one if len(one) == 1 else []

    def _alternatives(self, item: Item) -> Alternatives:
        if isinstance(item.node, Terminal):
            return _literal(item.node.text)
        return self._rules.get(item.node, []) if isinstance(item.node, str) else item.node

    def _entered(self, alternatives: Alternatives, parent: int) -> list[int]:
        places = []
        for items in alternatives:
            sequence = self._of_sequence.setdefault(id(items), len(self._sequences))
            if sequence == len(self._sequences):
                self._sequences.append(items)
            places.append(self._number(_Place(sequence, 0, 0, parent)))
        return places

    def _number(self, place: _Place) -> int:
        """The number of a place; behind the last item of a sequence that is where it goes on."""
        items = self._sequences[place.sequence]
        if place.position < len(items) and items[place.position].high == place.times:
            place = place._replace(position=place.position + 1, times=0)
        if place.position >= len(items):
            return place.parent
        number = self._of_place.setdefault(place, len(self._places))
        if number == len(self._places):
            self._places.append(place)
        return number


def _examples(kind: _Class) -> list[int]:
    """Code points among which is one that a class shares with another, if they share any."""
    return [high + 1 for _, high in kind.ranges] + [0x20] if kind.is_not else [low for low, _ in kind.ranges]


@lru_cache(maxsize=4096)
def _literal(text: str) -> Alternatives:
    """The characters of a longer literal as items; nothing for any other terminal."""
    characters = _characters(text)
    return (
        [[Item(Terminal(f'"{found[0]}"'), 1) for found in _CHARACTER.finditer(text[1:-1])]]
        if len(characters) > 1
        else []
    )


@lru_cache(maxsize=4096)
def _characters(text: str) -> list[_Class]:
    """What a terminal matches, character by character; nothing for a token, which is no text."""
    if text == ".":
        return [_Class((), is_not=True)]
    if text[0] in "!<":
        return []
    points = [(_point(found), found[0]) for found in _CHARACTER.finditer(text[1:-1])]
    if text[0] == '"':
        return [_Class(((point, point),)) for point, _ in points]
    is_not = bool(points) and points[0][1] == "^"
    return [_Class(tuple(_ranges(points[is_not:])), is_not)]


def _ranges(points: list[tuple[int, str]]) -> Iterator[tuple[int, int]]:
    """The ranges of a class: a character, or two with a written "-" between them."""
    at = 0
    while at < len(points):
        is_range = at + 2 < len(points) and points[at + 1][1] == "-"
        yield points[at][0], points[at + 2 * is_range][0]
        at += 3 if is_range else 1


def _point(found: re.Match[str]) -> int:
    digits = found["x"] or found["u"] or found["U"]
    if digits:
        return int(digits, 16) if re.fullmatch("[0-9a-fA-F]+", digits) else 0  # llama.cpp refuses these afterwards
    return ord(found["plain"] or _ESCAPES.get(found["escape"], found["escape"]))
