"""Ambiguity check for grammars: follows the characters that most parses accept, and counts how the parses multiply.

llama.cpp advances every parse with each token, so that an ambiguous loop takes time exponential in a token's length, in
one call that cannot be interrupted.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from engine.errors import ConfigError
from engine.llama.gbnf import Alternatives, Item, Rules, Sequence, Terminal

MAX_READINGS = 3_000_000
"""Two choices at each of 16 characters and a third at some of them, as in careless grammars, stay below this limit."""
MAX_STACKS = 2000
NUM_CHARACTERS = 16
"""Characters for which each place is followed: longer tokens are rare."""
MAX_STEPS = 30_000
"""Places and characters examined per grammar, in about 0.1 s; the rest is not checked. The pool's watchdog also kills a
worker that hangs."""
MAX_UNFINISHED = 10_000
"""Readings allowed at the point where the steps are used up."""
_PATIENCE = 3

_CHARACTER = re.compile(r"\\x(?P<x>..)|\\u(?P<u>....)|\\U(?P<U>.{8})|\\(?P<escape>.)|(?P<plain>.)", re.DOTALL)
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n"}
_END = -1


class _Class(NamedTuple):
    """Character class of a one-character terminal: code point ranges that it matches or, with `is_not`, excludes."""

    ranges: tuple[tuple[int, int], ...]
    is_not: bool = False

    def matches(self, point: int) -> bool:
        return any(low <= point <= high for low, high in self.ranges) != self.is_not


class _Place(NamedTuple):
    """A parser stack: the item at `position` of `sequence` was read `times`; `parent` is the rest of the stack."""

    sequence: int
    position: int
    times: int
    parent: int


Ways = dict[tuple[_Class, int], int]
"""Number of parses that lead to each character class and the place behind it."""


def check(rules: Rules) -> None:
    """Raise ConfigError if a rule can parse the same NUM_CHARACTERS characters in too many ways.

    From each place it follows the characters that most parses accept, then those that leave most parses open, then each
    first character whenever it can be read again. None of these finds a loop that another character leads out of.
    """
    parser = _Parser(rules)
    places = [(name, one) for name, alternatives in rules.items() for one in (alternatives, *_loops(alternatives))]
    for follow in (_follow_most_read, _follow_most_left, _follow_each_first):
        for name, start in places:
            try:
                follow(parser, start)
            except _TooMany as error:
                raise ConfigError(
                    f"is ambiguous: rule {name} can parse the same few characters in more than {error} ways, the "
                    "limit; rewrite it so that the next character determines the alternative"
                ) from None
            except _NoStepsLeft:
                return


def _follow_most_read(parser: "_Parser", start: Alternatives) -> None:
    _follow(parser, parser.begin(start), parser.most_read)


def _follow_most_left(parser: "_Parser", start: Alternatives) -> None:
    _follow(parser, parser.begin(start), parser.most_left)


def _follow_each_first(parser: "_Parser", start: Alternatives) -> None:
    ways = parser.begin(start)
    for point in _points(ways):
        _follow(parser, ways, _preferring(point, parser))


def _preferring(point: int, parser: "_Parser") -> Callable[["Ways"], int]:
    return lambda ways: point if any(kind.matches(point) for kind, _ in ways) else parser.most_read(ways)


def _follow(parser: "_Parser", ways: "Ways", choose: Callable[["Ways"], int]) -> None:
    most = last_growth = 0
    for num_read in range(1, NUM_CHARACTERS + 1):
        if not ways or num_read - last_growth > _PATIENCE:
            return
        ways = parser.read(ways, choose(ways))
        num = sum(ways.values())
        if num > most:
            most, last_growth = num, num_read


def _loops(alternatives: Alternatives) -> Iterator[Alternatives]:
    """Yield every repeated item as a rule of its own."""
    for items in alternatives:
        for item in items:
            if item.high != 1:
                yield [[item]]
            if isinstance(item.node, list):
                yield from _loops(item.node)


class _TooMany(Exception):
    """A limit on parses or stacks was exceeded; its argument is the limit, as text."""


class _NoStepsLeft(Exception):
    """The MAX_STEPS places and characters are used up."""


class _Parser:
    """Model of llama.cpp's grammar parser, with numbered stacks; raises _TooMany and _NoStepsLeft."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._num_readings = self._num_steps = 0
        self._sequences: list[Sequence] = []
        self._of_sequence: dict[int, int] = {}
        self._places: list[_Place] = []
        self._of_place: dict[_Place, int] = {}
        self._reachable: dict[int, list[tuple[_Class, int]]] = {}
        self._literals: dict[int, Alternatives] = {}

    def begin(self, alternatives: Alternatives) -> Ways:
        """Return the ways to begin the alternatives."""
        ways: Ways = {}
        for place in self._entered(alternatives, _END):
            for way in self._next(place):
                ways[way] = ways.get(way, 0) + 1
        return ways

    def read(self, ways: Ways, point: int) -> Ways:
        """Return the ways that remain after reading a character."""
        following: Ways = {}
        self._num_readings = 0
        for (kind, behind), num in ways.items():
            if kind.matches(point):
                reached = self._next(behind)
                for way in reached:
                    following[way] = following.get(way, 0) + num
                self._num_readings += num * len(reached)
                if self._num_readings > MAX_READINGS:
                    raise _TooMany(f"{MAX_READINGS:,}")
                if len(following) > MAX_STACKS:
                    raise _TooMany(f"{MAX_STACKS:,}")
        return following

    def most_read(self, ways: Ways) -> int:
        """Return the character that most ways can read."""
        kinds: dict[_Class, int] = {}
        for (kind, _), num in ways.items():
            kinds[kind] = kinds.get(kind, 0) + num
        points = _points(ways)
        self._num_steps += len(points) * len(kinds)
        return max(points, key=lambda point: sum(num for kind, num in kinds.items() if kind.matches(point)), default=0)

    def most_left(self, ways: Ways) -> int:
        """Return the character after which most ways go on."""
        return self.most_read({way: num * len(self._next(way[1])) for way, num in ways.items()})

    def _next(self, start: int) -> list[tuple[_Class, int]]:
        """Return the character classes that can follow a place, each with the place behind it."""
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
            if id(item) not in self._literals:  # the same text elsewhere in the grammar is a different parse
                self._literals[id(item)] = _literal(item.node.text)
            return self._literals[id(item)]
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
        """Return the number of a place; behind the last item of a sequence, that of its parent."""
        items = self._sequences[place.sequence]
        if place.position < len(items) and items[place.position].high == place.times:
            place = place._replace(position=place.position + 1, times=0)
        if place.position >= len(items):
            return place.parent
        number = self._of_place.setdefault(place, len(self._places))
        if number == len(self._places):
            self._places.append(place)
        return number


def _points(ways: Ways) -> set[int]:
    return {point for kind, _ in ways for point in _examples(kind)}


def _examples(kind: _Class) -> list[int]:
    """Return sample code points of a class; if two classes overlap, the samples of both include a common one."""
    return [high + 1 for _, high in kind.ranges] + [0x20] if kind.is_not else [low for low, _ in kind.ranges]


def _literal(text: str) -> Alternatives:
    """Return the characters of a literal of more than one as items; nothing for any other terminal."""
    characters = _characters(text)
    return (
        [[Item(Terminal(f'"{found[0]}"'), 1) for found in _CHARACTER.finditer(text[1:-1])]]
        if len(characters) > 1
        else []
    )


@lru_cache(maxsize=4096)
def _characters(text: str) -> list[_Class]:
    """Return the character classes that a terminal matches in turn; nothing for a token, which is not text."""
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
    """Yield the ranges of a class: a single character, or two with a literal "-" between them."""
    at = 0
    while at < len(points):
        is_range = at + 2 < len(points) and points[at + 1][1] == "-"
        yield points[at][0], points[at + 2 * is_range][0]
        at += 3 if is_range else 1


def _point(found: re.Match[str]) -> int:
    digits = found["x"] or found["u"] or found["U"]
    if digits:
        return int(digits, 16) if re.fullmatch("[0-9a-fA-F]+", digits) else 0  # llama.cpp rejects these afterwards
    return ord(found["plain"] or _ESCAPES.get(found["escape"], found["escape"]))
