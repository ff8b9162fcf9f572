"""Model of llama.cpp's grammar parser: its stacks, the characters that each can read, and the stacks behind them."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from engine.llama.grammar_syntax import Alternatives, Item, Rules, Sequence, Terminal

Ranges = tuple[tuple[int, int], ...]
"""Code points that a character class matches: disjoint ranges in ascending order."""
END = -1
"""The stack that is empty above the frame it began in."""

_LAST_POINT = 0x10FFFF
_CHARACTER = re.compile(r"\\x(?P<x>..)|\\u(?P<u>....)|\\U(?P<U>.{8})|\\(?P<escape>.)|(?P<plain>.)", re.DOTALL)
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n"}


class Frame:
    """Alternatives of a rule or a group, and the places that use them.

    rule: name of the rule that they belong to.
    """

    def __init__(self, rule: str, alternatives: Alternatives) -> None:
        self.rule = rule
        self.alternatives = alternatives
        self.sites: list[tuple[Frame, Sequence, int]] = []


class OutOfSteps(Exception):
    """The steps allowed for a grammar are used up."""


class Continuations(NamedTuple):
    """What can follow a stack: character classes, each with the stack behind it.

    reached: the stacks that it becomes without reading a character, among them END if its frame can end. core: those of
    them from which all ways come.
    """

    ways: list[tuple[Ranges, int]]
    reached: set[int]
    core: set[int]

    @property
    def can_end(self) -> bool:
        """True if the frame of the stack can end before the next character."""
        return END in self.reached


class _Place(NamedTuple):
    """A stack: the item at `position` of `sequence` was read `times`; `parent` is the rest of the stack."""

    sequence: int
    position: int
    times: int
    parent: int


class Stacks:
    """Stacks of a grammar, as numbers; only of rules that can be reached from root. Raises OutOfSteps.

    window: characters for which a stack is followed.
    """

    def __init__(self, rules: Rules, window: int, max_steps: int) -> None:
        self._window = window
        self._num_left = max_steps
        self._rules = rules
        self._sequences: list[Sequence] = []
        self._of_sequence: dict[int, int] = {}
        self._places: list[_Place] = []
        self._of_place: dict[_Place, int] = {}
        self._following: dict[int, Continuations] = {}
        self._readers: dict[int, tuple[list[Ranges], list[int]]] = {}
        self._above: dict[tuple[int, int], int] = {}
        self._whole: list[Sequence] = []
        self._every_follower: dict[Frame, dict[int, Frame]] = {}
        self._followers: dict[Frame, dict[int, Frame]] = {}
        self._contexts: dict[frozenset[int], Frame] = {}
        self._context_of: dict[Frame, Frame] = {}
        self._first: dict[int, Ranges] = {}
        self._after_end: dict[Frame, Ranges] = {}
        self._frames = self._reachable_frames()

    def spend(self, num_steps: int) -> None:
        """Count work; raises OutOfSteps when `max_steps` are used up."""
        self._num_left -= num_steps
        if self._num_left < 0:
            raise OutOfSteps

    def _reachable_frames(self) -> list[Frame]:
        """Return all frames in the order in which root reaches them; collect the sites of each."""
        root = Frame("root", self._rules.get("root", []))
        found = {id(root.alternatives): root}
        todo = [root]
        for frame in todo:
            for items in frame.alternatives:
                for position, item in enumerate(items):
                    if isinstance(item.node, Terminal):
                        continue
                    used = self._rules.get(item.node, []) if isinstance(item.node, str) else item.node
                    rule = item.node if isinstance(item.node, str) else frame.rule
                    if id(used) not in found:
                        found[id(used)] = Frame(rule, used)
                        todo.append(found[id(used)])
                    found[id(used)].sites.append((frame, items, position))
        return todo

    def starts(self) -> Iterator[tuple[int, Frame]]:
        """Yield the stacks at the begin of each rule, and in front of each group and each repeated item, with their
        frames: everywhere else there is one way to go on. Leaves out those that an earlier one becomes."""
        kept = _Kept(self)
        for frame in self._frames:
            for stack in self._starts_in(frame):
                if kept.add(stack, frame):
                    yield stack, frame

    def _starts_in(self, frame: Frame) -> Iterator[int]:
        if frame.alternatives is self._rules.get(frame.rule):
            self._whole.append([Item(frame.alternatives, 1)])
            yield self._number(_Place(self._of(self._whole[-1]), 0, 0, END))
        for items in frame.alternatives:
            for position, item in enumerate(items):
                if isinstance(item.node, list) or (item.low, item.high) != (1, 1):
                    for times in {0, *self._times(item)}:
                        yield self._number(_Place(self._of(items), position, times, END))

    def _times(self, item: Item) -> set[int]:
        """Return how often an item was read where it matters: once; when it soon may end; in llama.cpp's loop behind
        that. Further optional repetitions leave fewer ways."""
        return {1, *range(max(item.low - self._window, 1), item.low + 1)} | (
            {item.low + 1} if item.high is None else set()
        )

    def followers(self, frame: Frame) -> dict[int, Frame]:
        """Return the stacks that can follow the END of a frame, each with the frame that it is in; leaves out those
        that another one becomes."""
        context = self.context(frame)
        if context not in self._followers:
            kept = _Kept(self)
            every = self._all_followers(context)
            self._followers[context] = {stack: every[stack] for stack in every if kept.add(stack, every[stack])}
        return self._followers[context]

    def context(self, frame: Frame) -> Frame:
        """Return the frame that stands for all frames with the same followers."""
        if frame not in self._context_of:
            self._context_of[frame] = self._contexts.setdefault(frozenset(self._all_followers(frame)), frame)
        return self._context_of[frame]

    def _all_followers(self, frame: Frame) -> dict[int, Frame]:
        if frame not in self._every_follower:
            found: dict[int, Frame] = {}
            todo, seen = [frame], {frame}
            for ended in todo:
                self.spend(len(ended.sites))
                for outer, items, position in ended.sites:
                    for place in self._behind(items, position):
                        if place != END:
                            found[place] = outer
                        elif outer in self._every_follower:
                            found.update(self._every_follower[outer])
                        elif outer not in seen:
                            seen.add(outer)
                            todo.append(outer)
            self.spend(len(found))
            self._every_follower[frame] = found
        return self._every_follower[frame]

    def _behind(self, items: Sequence, position: int) -> set[int]:
        """Return the stacks behind an item that was just read."""
        return {self._number(_Place(self._of(items), position, num, END)) for num in self._times(items[position])}

    def first(self, stack: int, frame: Frame) -> Ranges:
        """Return all characters that can follow a stack, including those behind the END of its frame."""
        if stack not in self._first:
            after = self.following(stack)
            self._first[stack] = joined(ranges for ranges, _ in after.ways)
            if after.can_end:
                self._first[stack] = joined([self._first[stack], self.after_end(frame)])
        return self._first[stack]

    def after_end(self, frame: Frame) -> Ranges:
        """Return all characters that can follow the END of a frame."""
        if frame not in self._after_end:
            found: set[Ranges] = set()
            todo, seen = [frame], {frame}
            for ended in todo:
                for stack, outer in self.followers(ended).items():
                    after = self.following(stack)
                    found.update(ranges for ranges, _ in after.ways)
                    self.spend(len(after.ways))
                    if after.can_end and outer not in seen:
                        seen.add(outer)
                        todo.append(outer)
            self._after_end[frame] = joined(found)
        return self._after_end[frame]

    def on_top(self, stack: int, below: int) -> int:
        """Return a stack with another one below it in place of its END."""
        above = []
        while stack != END and (stack, below) not in self._above:
            above.append(stack)
            stack = self._places[stack].parent
        built = below if stack == END else self._above[stack, below]
        for number in reversed(above):
            built = self._above[number, below] = self._number(_Place(*self._places[number][:3], built))
        self.spend(len(above))
        return built

    def following(self, start: int) -> Continuations:
        """Return what can follow a stack."""
        if start in self._following:
            return self._following[start]
        ways: list[tuple[Ranges, int]] = []
        seen, todo = {start}, [start]
        while todo:
            number = todo.pop()
            if number == END:
                continue
            sequence, position, times, parent = self._places[number]
            item = self._sequences[sequence][position]
            reached = []
            if times >= item.low:
                reached.append(self._number(_Place(sequence, position + 1, 0, parent)))
            if item.high is None or times < item.high:
                times = times + 1 if item.high is not None else min(times, item.low) + 1
                behind = self._number(_Place(sequence, position, times, parent))
                classes, entered = self._read_by(item)
                ways += [(ranges, behind) for ranges in classes]
                reached += [self._number(_Place(inner, 0, 0, behind)) for inner in entered]
            new = [one for one in reached if one not in seen]
            seen.update(new)
            todo += new
        self.spend(len(seen))
        own = self._places[start] if start != END else None
        reads = own and self._read_by(self._sequences[own.sequence][own.position])[0]
        self._following[start] = Continuations(ways, seen, seen if reads or len(seen) == 1 else seen - {start})
        return self._following[start]

    def _read_by(self, item: Item) -> tuple[list[Ranges], list[int]]:
        """Return the class of an item of one character; or the sequences of a group, a rule or a longer literal."""
        key = id(item)  # the same text elsewhere in the grammar is a different parse
        if key not in self._readers:
            classes = _characters(item.node.text) if isinstance(item.node, Terminal) else []
            if isinstance(item.node, str):
                alternatives = self._rules.get(item.node, [])
            elif isinstance(item.node, Terminal):
                alternatives = [_literal(item.node.text)] if len(classes) > 1 else []
            else:
                alternatives = item.node
            self._readers[key] = classes if len(classes) == 1 else [], [*map(self._of, alternatives)]
        return self._readers[key]

    def _of(self, items: Sequence) -> int:
        """Return the number of a sequence."""
        sequence = self._of_sequence.setdefault(id(items), len(self._sequences))
        if sequence == len(self._sequences):
            self._sequences.append(items)
        return sequence

    def _number(self, place: _Place) -> int:
        """Return the number of a place: behind the last item of a sequence, that of its parent; in front of a last item
        that can begin in one way only, that of the first item inside."""
        sequence, position, times, parent = place
        while True:
            items = self._sequences[sequence]
            if position < len(items) and items[position].high == times:
                position, times = position + 1, 0
            if position >= len(items):
                return parent
            entered = self._read_by(items[position])[1] if position == len(items) - 1 else []
            if len(entered) != 1 or items[position][2:] != (1, 1):
                break
            sequence, position = entered[0], 0
        place = _Place(sequence, position, times, parent)
        number = self._of_place.setdefault(place, len(self._places))
        if number == len(self._places):
            self._places.append(place)
        return number


class _Kept:
    """Stacks without those that only become what another one in the same context becomes too."""

    def __init__(self, model: Stacks) -> None:
        self._model = model
        self._reached: dict[tuple[int, Frame], list[set[int]]] = {}

    def add(self, stack: int, frame: Frame) -> bool:
        """Take in a stack; return False if an earlier one makes it superfluous."""
        context = self._model.context(frame)
        if (stack, context) in self._reached:
            return False
        found = self._model.following(stack)
        if any(found.core <= reached for reached in self._reached.get((max(found.core), context), [])):
            return False
        self._model.spend(len(found.reached))
        for one in found.reached:
            self._reached.setdefault((one, context), []).append(found.reached)
        return True


def _literal(text: str) -> Sequence:
    """Return the characters of a literal as items."""
    return [Item(Terminal(f'"{found[0]}"'), 1) for found in _CHARACTER.finditer(text[1:-1])]


@lru_cache(maxsize=4096)
def _characters(text: str) -> list[Ranges]:
    """Return the character classes that a terminal matches in turn; nothing for a token, which is not text."""
    if text == ".":
        return [((0, _LAST_POINT),)]
    if text[0] in "!<":
        return []
    points = [(_point(found), found[0]) for found in _CHARACTER.finditer(text[1:-1])]
    if text[0] == '"':
        return [((point, point),) for point, _ in points]
    is_not = bool(points) and points[0][1] == "^"
    ranges = joined([tuple(_ranges(points[is_not:]))])
    return [_complement(ranges) if is_not else ranges]


def _ranges(points: list[tuple[int, str]]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a class: a single character, or two with a literal "-" between them."""
    at = 0
    while at < len(points):
        is_range = at + 2 < len(points) and points[at + 1][1] == "-"
        yield points[at][0], points[at + 2 * is_range][0]
        at += 3 if is_range else 1


def joined(classes: Iterable[Ranges]) -> Ranges:
    """Return the ranges of all classes in ascending order, with those that touch joined; [z-a] matches nothing."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(one for ranges in classes for one in ranges if one[0] <= one[1]):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return tuple(found)


def overlap(one: Ranges, other: Ranges) -> bool:
    """Return True if a character is in both."""
    edges = sorted((edge, is_end) for low, high in one + other for edge, is_end in ((low, False), (high, True)))
    return any(not before and not after for (_, before), (_, after) in pairwise(edges))


def _complement(ranges: Ranges) -> Ranges:
    lows = [0, *(high + 1 for _, high in ranges)]
    highs = [*(low - 1 for low, _ in ranges), _LAST_POINT]
    return tuple((low, high) for low, high in zip(lows, highs, strict=True) if low <= high)


def _point(found: re.Match[str]) -> int:
    digits = found["x"] or found["u"] or found["U"]
    if digits:
        return int(digits, 16) if re.fullmatch("[0-9a-fA-F]+", digits) else 0  # llama.cpp rejects these afterwards
    return ord(found["plain"] or _ESCAPES.get(found["escape"], found["escape"]))
