"""Ambiguity check for grammars: proves a bound on the number of parses of any few characters, or refuses the grammar.

llama.cpp advances every parse with each token, so that an ambiguous loop takes time exponential in a token's length, in
one call that cannot be interrupted.
"""

import heapq
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from engine.errors import ConfigError
from engine.llama.grammar_stacks import END, Frame, OutOfSteps, Ranges, Stacks, joined, overlap
from engine.llama.grammar_syntax import Rules

NUM_CHARACTERS = 16
"""Characters of a token for which the bounds are proved: longer tokens are rare."""
MAX_PARSES = 1_000_000
"""Two choices at each of 16 characters and a third at some of them, as in careless grammars, stay below this limit."""
MAX_STACKS = 2000
MAX_STEPS = 150_000
"""Places and choices examined per grammar, in 0.5 to 1 s; a grammar that needs more is refused, as a
loop may hide in what was not examined."""

_Way = tuple[Ranges, int, int]
"""Character class, the stack behind it, the number of parses."""


class _Text(NamedTuple):
    """A text of `num_read` characters: the stacks in which its parses end, with the number of parses of each.

    frame: what END means in these stacks.
    """

    stacks: Counter[int]
    num_read: int
    frame: Frame


def check(rules: Rules) -> None:
    """Raise ConfigError if some NUM_CHARACTERS characters may have too many parses, wherever in a text they stand.

    From each place of the grammar the search extends the texts that decide the bound, until the bound is below the
    limits or the steps are used up.
    """
    search = _Search(rules)
    try:
        search.begin()
        search.prove(search.parses)
        search.prove(search.stacks)
    except OutOfSteps:
        raise ConfigError(
            f"is ambiguous or too large: its check reached the limit, {MAX_STEPS:,} steps, in rule {search.rule}; "
            "rewrite it so that the next character determines the alternative, or shorten it"
        ) from None


class _Bound:
    """Bound on one quantity, the parses or the stacks of a text, which multiply when texts follow each other.

    most: the largest value of a text of each length that was found. The texts that were not extended are kept by their
    length, the largest first.
    """

    def __init__(self, limit: int, what: str) -> None:
        self.limit = limit
        self.what = what
        self.most = [1] * (NUM_CHARACTERS + 1)
        self._open: list[list[tuple[int, int, _Text]]] = [[] for _ in self.most]
        self._order = count()

    def add(self, value: int, text: _Text) -> None:
        """Take in a text; raises ConfigError if its value exceeds the limit."""
        if value > self.limit:
            raise ConfigError(
                f"is ambiguous: rule {text.frame.rule} can parse the same {text.num_read} characters in more than "
                f"{self.limit:,} {self.what}, the limit; rewrite it so that the next character determines the "
                "alternative"
            )
        self.most[text.num_read] = max(self.most[text.num_read], value)
        if text.num_read < NUM_CHARACTERS and value > 1:
            heapq.heappush(self._open[text.num_read], (-value, next(self._order), text))

    def take_decisive(self) -> _Text | None:
        """Remove and return the largest text that has to be extended to lower the bound; None if the bound is proved.

        A text that was not extended goes on from each of its stacks, of which every one has the bound of fewer
        characters.
        """
        largest = [-texts[0][0] if texts else 0 for texts in self._open]
        bound = [1]
        for length in range(1, NUM_CHARACTERS + 1):
            extended = (largest[num_read] * bound[length - num_read] for num_read in range(1, length + 1))
            bound.append(max(self.most[length], bound[-1], *extended))
        if bound[-1] <= self.limit:
            return None
        decisive = [num for num in range(1, NUM_CHARACTERS) if largest[num] * bound[NUM_CHARACTERS - num] > self.limit]
        return heapq.heappop(self._open[max(decisive, key=largest.__getitem__)])[2]


class _Search:
    """Search for the texts with the most parses and stacks."""

    def __init__(self, rules: Rules) -> None:
        self.parses = _Bound(MAX_PARSES, "ways")
        self.stacks = _Bound(MAX_STACKS, "states")
        self._model = Stacks(rules, NUM_CHARACTERS, MAX_STEPS)
        self.rule = "root"
        self._seen: dict[tuple[Frame, frozenset[tuple[int, int]]], int] = {}

    def begin(self) -> None:
        """Read one character from each place."""
        for stack, frame in self._model.starts():
            self._extend(_Text(Counter([stack]), 0, frame))

    def prove(self, bound: _Bound) -> None:
        """Extend texts until the bound is below its limit."""
        while (text := bound.take_decisive()) is not None:
            self._extend(text)

    def _extend(self, text: _Text) -> None:
        """Add each text that is one character longer; where the frame can end, in each place that uses it."""
        self.rule = text.frame.rule
        ways: list[_Way] = []
        num_ended = 0
        for stack, num in text.stacks.items():
            found = self._model.following(stack)
            ways += [(ranges, behind, num) for ranges, behind in found.ways]
            num_ended += num * found.can_end
        self._read(text, ways, [], END, text.frame)
        if num_ended:
            self._leave(text, ways, num_ended)

    def _leave(self, text: _Text, ways: list[_Way], num_ended: int) -> None:
        """Add the texts of which some parses leave the frame, and those around it, before the next character."""
        left = [(ways, text.frame)]
        for _ in range(NUM_CHARACTERS):
            still_left = []
            for ways, frame in left:
                readable = joined({ranges for ranges, _, _ in ways})
                for below, outer in self._model.followers(frame).items():
                    if num_ended > 1 or overlap(readable, self._model.first(below, outer)):
                        found = self._model.following(below)
                        after = [(*way, num_ended) for way in found.ways]
                        self._read(text, ways, after, below, outer)
                        if found.can_end:
                            self._model.spend(len(ways))
                            moved = [(ranges, self._model.on_top(behind, below), num) for ranges, behind, num in ways]
                            still_left.append((moved + after, outer))
            left = still_left

    def _read(self, text: _Text, ways: list[_Way], after: list[_Way], below: int, frame: Frame) -> None:
        """Add the texts with one more character; if there are ways behind `below`, only those that take one of them."""
        every = ways + after
        done: set[frozenset[int]] = set()
        for chosen in _choices(every):
            self._model.spend(len(chosen))
            if chosen in done or (after and max(chosen) < len(ways)):
                continue
            if sum(every[number][2] for number in chosen) < 2:
                continue  # a single parse goes on from a place where the search begins too
            done.add(chosen)
            stacks: Counter[int] = Counter()
            for number in chosen:
                _, behind, num = every[number]
                stacks[self._model.on_top(behind, below) if number < len(ways) else behind] += num
            self._add(_Text(stacks, text.num_read + 1, frame))

    def _add(self, text: _Text) -> None:
        key = self._model.context(text.frame), frozenset(text.stacks.items())
        if self._seen.get(key, NUM_CHARACTERS + 1) > text.num_read:
            self._seen[key] = text.num_read
            self.parses.add(text.stacks.total(), text)
            self.stacks.add(len(text.stacks), text)


def _choices(ways: list[_Way]) -> Iterator[frozenset[int]]:
    """Yield which ways read the same character, for each character that some other does not surpass."""
    edges = sorted(
        edge
        for number, (ranges, _, _) in enumerate(ways)
        for low, high in ranges
        for edge in ((low, True, number), (high + 1, False, number))
    )
    active: set[int] = set()
    is_grown = False
    for _, begins, number in edges:
        if begins:
            active.add(number)
            is_grown = True
        else:
            if is_grown:
                yield frozenset(active)
                is_grown = False
            active.remove(number)
