"""Regular expressions measured without a clock: the steps of a backtracking matcher, and texts that make one repeat.

The matcher goes through the tree that `re` compiles, in the order in which `re` tries, so that its steps grow as the
time of `re` does; it gives the same match, which `tests/test_patterns.py` compares.
"""

import random
import re
from collections.abc import Iterator
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

Tree = list[tuple[Any, Any]]
REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)
ONE_CHARACTER = (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN)
STRANGE = "\0"
ENOUGH = 100  # a repeat of more is drawn as one without an end
EACH_REPEAT = 4

_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}
_DRAWN = "a1 Z_-.,'\"(){}[]/|:;\t\nx"


class TooManySteps(Exception):
    """The matcher took more steps than it may."""


class Found(NamedTuple):
    """What a search gave: where the match lies, None for none, and how many steps it took."""

    span: tuple[int, int] | None
    steps: int


def tree_of(pattern: re.Pattern[Any]) -> Tree:
    """The parsed tree of a pattern."""
    return list(parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG))


def text_pattern(pattern: re.Pattern[Any]) -> re.Pattern[str]:
    """The pattern for text where it is one for bytes."""
    found = pattern.pattern
    return pattern if isinstance(found, str) else re.compile(found.decode("latin-1"), pattern.flags)


def search(pattern: re.Pattern[str], text: str, *, most: int, is_anchored: bool = False) -> Found:
    """Search `text` as `re` does, or match at its start; raises TooManySteps after `most`."""
    matcher = _Matcher(pattern, text, most)
    tree = tree_of(pattern)
    for start in range(1 if is_anchored else len(text) + 1):
        matcher.step()
        for end in matcher.ends(tree, start):
            return Found((start, end), matcher.steps)
    return Found(None, matcher.steps)


class _Matcher:
    """A backtracking matcher over the tree of one pattern; every attempt at one element is a step."""

    def __init__(self, pattern: re.Pattern[str], text: str, most: int) -> None:
        self._text, self._flags, self._most = text, pattern.flags, most
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps > self._most:
            raise TooManySteps

    def ends(self, tree: Tree, at: int, first: int = 0) -> Iterator[int]:
        """Ends of the matches of `tree` from its element `first` on, in the order in which they are tried."""
        if first == len(tree):
            yield at
            return
        for middle in self._element(*tree[first], at):
            yield from self.ends(tree, middle, first + 1)

    def _element(self, kind: Any, given: Any, at: int) -> Iterator[int]:
        self.step()
        if kind in ONE_CHARACTER:
            if self._is_one(at, kind, given):
                yield at + 1
        elif kind in REPEATS:
            yield from self._repeat(at, kind, *given)
        elif kind is sre.BRANCH:
            for branch in given[1]:
                yield from self.ends(list(branch), at)
        elif kind is sre.SUBPATTERN:
            yield from self.ends(list(given[3]), at)
        elif kind is sre.ATOMIC_GROUP:
            yield from self._first(list(given), at)
        elif kind in (sre.ASSERT, sre.ASSERT_NOT):
            if self._holds(at, *given) == (kind is sre.ASSERT):
                yield at
        elif kind is sre.AT:
            if self._is_at(given, at):
                yield at
        else:
            raise NotImplementedError(f"{kind} in a pattern")

    def _first(self, tree: Tree, at: int) -> Iterator[int]:
        yield from [end for end, _ in zip(self.ends(tree, at), range(1), strict=False)]

    def _repeat(self, at: int, kind: Any, least: int, most: Any, body: Any) -> Iterator[int]:
        tree = list(body)
        if kind is sre.POSSESSIVE_REPEAT:
            yield from self._possessive(tree, least, int(most), at)
        elif kind is sre.MAX_REPEAT and len(tree) == 1 and tree[0][0] in ONE_CHARACTER:
            end = at
            while end - at < int(most) and self._is_one(end, *tree[0]):
                self.step()
                end += 1
            for each in range(end, at + least - 1, -1):
                self.step()
                yield each
        else:
            yield from self._more(kind, tree, least, int(most), at, 0)

    def _more(self, kind: Any, tree: Tree, least: int, most: int, at: int, num: int) -> Iterator[int]:
        self.step()
        if kind is sre.MIN_REPEAT and num >= least:
            yield at
        if num < most:
            for end in self.ends(tree, at):
                if end > at or num < least:
                    yield from self._more(kind, tree, least, most, end, num + 1)
        if kind is sre.MAX_REPEAT and num >= least:
            yield at

    def _possessive(self, tree: Tree, least: int, most: int, at: int) -> Iterator[int]:
        num = 0
        while num < most:
            self.step()
            end = next(self._first(tree, at), None)
            if end is None or end == at:
                break
            at, num = end, num + 1
        if num >= least:
            yield at

    def _holds(self, at: int, direction: int, body: Any) -> bool:
        """Whether text before (direction -1) or behind `at` is as asked."""
        tree = list(body)
        if direction > 0:
            return next(self.ends(tree, at), None) is not None
        width = body.getwidth()[0]
        return at >= width and next(self.ends(tree, at - width), None) == at

    def _is_at(self, place: Any, at: int) -> bool:
        forms = {sre.AT_BEGINNING: "^", sre.AT_END: "$", sre.AT_BOUNDARY: r"\b", sre.AT_NON_BOUNDARY: r"\B"}
        forms |= {sre.AT_BEGINNING_STRING: r"\A", sre.AT_END_STRING: r"\Z"}
        return re.compile(forms[place], self._flags & ~re.VERBOSE).match(self._text, at) is not None

    def _is_one(self, at: int, kind: Any, given: Any) -> bool:
        """Whether the character at `at` is one that this element takes."""
        if at >= len(self._text):
            return False
        one = self._text[at]
        if kind is sre.ANY:
            return one != "\n" or bool(self._flags & re.DOTALL)
        forms = {one, one.lower(), one.upper()} if self._flags & re.IGNORECASE else {one}
        if kind is sre.IN:
            is_negated = given[0][0] is sre.NEGATE
            return is_negated != any(_is_in(form, item) for form in forms for item in given[is_negated:])
        return (kind is sre.LITERAL) == any(form == chr(given) for form in forms)


def _is_in(one: str, item: tuple[Any, Any]) -> bool:
    kind, given = item
    if kind is sre.LITERAL:
        return one == chr(given)
    if kind is sre.RANGE:
        return len(one) == 1 and given[0] <= ord(one) <= given[1]
    return re.fullmatch(_CATEGORIES[given], one) is not None


# texts


class Pump(NamedTuple):
    """A text that repeats its middle."""

    before: str
    unit: str
    after: str

    def text(self, num_characters: int) -> str:
        """The text with as many units as make about so many characters."""
        return self.before + self.unit * max(1, num_characters // len(self.unit)) + self.after


def pumps(pattern: re.Pattern[str], drawn: random.Random, num: int) -> Iterator[Pump]:
    """Texts that a pattern may be slow at: `EACH_REPEAT` times each of its repeats made long in its place, and what
    comes before one begun again and again, and `num` whose units are drawn from what it matches, whole, in part and
    strange.
    """
    tree = tree_of(pattern)
    for _ in range(EACH_REPEAT):
        for before, body in _repeats(tree, drawn):
            after = drawn.choice([STRANGE, drawn.choice(_DRAWN)])
            yield Pump(before, body or drawn.choice(_DRAWN), after)
            yield Pump("", before or body or drawn.choice(_DRAWN), after)
    for _ in range(num):
        whole = _text_of(tree, drawn)
        bodies = (body for _, body in _repeats(tree, drawn))
        parts = [*bodies, whole, *(_cut(whole, drawn) for _ in range(3)), drawn.choice(_DRAWN)]
        unit = "".join(drawn.choice(parts) for _ in range(drawn.choice((1, 1, 2))))
        before = drawn.choice(["", whole, whole[: drawn.randrange(len(whole) + 1)], drawn.choice(parts)])
        yield Pump(before, unit or drawn.choice(_DRAWN), drawn.choice(["", STRANGE, "\n", drawn.choice(parts)]))


def _cut(text: str, drawn: random.Random) -> str:
    start, end = sorted(drawn.randrange(len(text) + 1) for _ in range(2))
    return text[start:end] if drawn.random() < 0.5 else text[:end]


def _repeats(tree: Tree, drawn: random.Random, before: str = "") -> Iterator[tuple[str, str]]:
    """For each repeat without an end in a tree, a text that comes before it and what it repeats, once."""
    for kind, given in tree:
        if kind in REPEATS:
            if given[1] > ENOUGH:
                yield before, _text_of(list(given[2]), drawn)
            yield from _repeats(list(given[2]), drawn, before)
        elif kind is sre.SUBPATTERN:
            yield from _repeats(list(given[3]), drawn, before)
        elif kind is sre.ATOMIC_GROUP:
            yield from _repeats(list(given), drawn, before)
        elif kind is sre.BRANCH:
            for branch in given[1]:
                yield from _repeats(list(branch), drawn, before)
        before += _drawn_element(kind, given, drawn)


def _text_of(tree: Tree, drawn: random.Random) -> str:
    """A text that the tree may match; what it asserts around it is not looked at."""
    return "".join(_drawn_element(kind, given, drawn) for kind, given in tree)


def _drawn_element(kind: Any, given: Any, drawn: random.Random) -> str:
    if kind is sre.LITERAL:
        return chr(given)
    if kind in (sre.NOT_LITERAL, sre.ANY, sre.IN):
        fitting = [one for one in _DRAWN + _listed(kind, given) if re.match(_class_of(kind, given), one, re.DOTALL)]
        return drawn.choice(fitting)
    if kind in REPEATS:
        num = drawn.randint(given[0], min(int(given[1]), given[0] + 2))
        return "".join(_text_of(list(given[2]), drawn) for _ in range(num))
    if kind is sre.SUBPATTERN:
        return _text_of(list(given[3]), drawn)
    if kind is sre.ATOMIC_GROUP:
        return _text_of(list(given), drawn)
    if kind is sre.BRANCH:
        return _text_of(list(drawn.choice(given[1])), drawn)
    return ""


def _listed(kind: Any, given: Any) -> str:
    if kind is not sre.IN:
        return ""
    ranges = (item for kind, item in given if kind is sre.RANGE)
    return "".join(chr(item) for kind, item in given if kind is sre.LITERAL) + "".join(chr(low) for low, _ in ranges)


def _class_of(kind: Any, given: Any) -> str:
    """The element as a pattern of its own."""
    if kind is sre.ANY:
        return "."
    if kind is sre.NOT_LITERAL:
        return f"[^{re.escape(chr(given))}]"
    inner = "".join(_item(item) for item in given)
    return f"[{inner}]"


def _item(item: tuple[Any, Any]) -> str:
    kind, given = item
    if kind is sre.NEGATE:
        return "^"
    if kind is sre.RANGE:
        return f"{re.escape(chr(given[0]))}-{re.escape(chr(given[1]))}"
    return _CATEGORIES[given] if kind is sre.CATEGORY else re.escape(chr(given))
