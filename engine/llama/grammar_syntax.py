"""GBNF grammar reader: parses a grammar and enforces limits before llama.cpp's recursive parser expands it."""

import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from engine.errors import ConfigError
from engine.specs import MAX_GRAMMAR_CHARACTERS

MAX_NESTING = 100
MAX_REPETITIONS = 2000
"""llama.cpp's MAX_REPETITION_THRESHOLD (llama-grammar.cpp); it silently treats a larger upper bound as unbounded."""
MAX_RULES = 20_000
MAX_ELEMENTS = 200_000
MAX_WAYS = 1000
"""Ways in which a rule can begin: llama.cpp stores a stack for each, and compares every token with every stack."""

_TOKEN = re.compile(
    r"""(?P<space> (?:[ \t\r\n]|\#[^\r\n]*+)++ )
      | (?P<rule> [a-zA-Z0-9-]++ (?=[ \t]*+::=) )
      | (?P<name> [a-zA-Z0-9-]++ )
      | (?P<terminal> "(?:[^"\\]|\\.)*+" | \[(?:[^\]\\]|\\.)*+\] | !?<[^>]*+> | \. )
      | (?P<times> [*+?] | \{\s*+ (?P<low>[0-9]++) \s*+ (?P<upto>,)? \s*+ (?P<high>[0-9]++)? \s*+ \} )
      | (?P<mark> ::= | [|()] )""",
    re.VERBOSE | re.DOTALL,
)
# An unclosed literal, class or token name extends to the end of the text, so that its characters are scanned only once.
_NAMED_TOKEN = re.compile(
    r'("(?:[^"\\]|\\.)*+(?:"|\\?\Z)|\[(?:[^\]\\]|\\.)*+(?:\]|\\?\Z)|\#[^\r\n]*+)|<(?!\[)[^>]*+(?:>|\Z)', re.DOTALL
)


class Terminal(NamedTuple):
    """A literal, a character class or a token, as written in the grammar."""

    text: str


class Item(NamedTuple):
    """One item of a sequence: a rule name, the alternatives of a group, or a terminal, repeated `low` to `high` times.

    size: elements that it takes in llama.cpp; high None: no upper bound.
    """

    node: "str | Alternatives | Terminal"
    size: int
    low: int = 1
    high: int | None = 1


Sequence = list[Item]
Alternatives = list[Sequence]
Rules = dict[str, Alternatives]


def read(text: str) -> Rules:
    """Parse a grammar and return its rules. Raises ConfigError for a syntax error or an exceeded limit, which it
    names."""
    if len(text) > MAX_GRAMMAR_CHARACTERS:
        raise ConfigError(f"has {len(text):,} characters; at most {MAX_GRAMMAR_CHARACTERS:,} are allowed")
    reader = _Reader(text)
    rules = reader.rules()
    for num, most, what in ((reader.num_rules, MAX_RULES, "rules"), (reader.num_elements, MAX_ELEMENTS, "elements")):
        if num > most:
            raise ConfigError(
                f"expands to {num:,} {what} with its repetitions written out; at most {most:,} are allowed"
            )
    _Beginnings(rules).check()
    return rules


def token_names(text: str) -> set[str]:
    """Return the names of the tokens in a grammar, with their angle brackets; not those given by id."""
    return {found[0] for found in _NAMED_TOKEN.finditer(text) if not found[1]}


def without_token_names(text: str) -> str:
    """Return the grammar with token 0 in place of every token given by name, which only a vocabulary can resolve."""
    return _NAMED_TOKEN.sub(lambda found: found[1] or "<[0]>", text)


class _Reader:
    """Recursive-descent parser that also counts the rules and elements to which llama.cpp would expand a grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._next()
        self.num_rules = self.num_elements = 0

    def rules(self) -> Rules:
        """Parse all rules; return the alternatives of each rule by its name."""
        found = {}
        while self._token is not None:
            if self._token.lastgroup != "rule":
                raise self._unexpected()
            name = self._token[0]
            self._next()
            self._next()  # ::=
            found[name] = self._alternatives(0)
        return found

    def _next(self) -> None:
        self._token = None
        while self._at < len(self._text):
            self._token = _TOKEN.match(self._text, self._at)
            if self._token is None:
                raise self._unexpected()
            self._at = self._token.end()
            if self._token.lastgroup != "space":
                return
        self._token = None

    def _unexpected(self) -> ConfigError:
        at = self._token.start() if self._token else self._at
        if at == len(self._text):
            return ConfigError("ends unexpectedly")
        line, column = self._text.count("\n", 0, at) + 1, at - self._text.rfind("\n", 0, at)
        return ConfigError(f"has a syntax error on line {line:,}, column {column:,}, at {self._text[at : at + 30]!r}")

    def _mark(self) -> str:
        """Return the mark at the current token; empty for any other token."""
        return self._token[0] if self._token and self._token.lastgroup == "mark" else ""

    def _alternatives(self, depth: int) -> Alternatives:
        if depth > MAX_NESTING:
            raise ConfigError(f"nests more than {MAX_NESTING} groups, the limit")
        found = [self._sequence(depth)]
        while self._mark() == "|":
            self._next()
            found.append(self._sequence(depth))
        self.num_rules += 1
        self.num_elements += len(found)
        return found

    def _sequence(self, depth: int) -> Sequence:
        items: Sequence = []
        while self._token is not None:
            token = self._token
            match token.lastgroup:
                case "name":
                    items.append(Item(token[0], 1))
                case "terminal" if token[0] in ('""', "[]", "[^]"):
                    items.append(Item([[]], 0))
                case "terminal":
                    items.append(Item(Terminal(token[0]), max(len(token[0]) - 2, 1)))
                case "times" if items:
                    items.append(self._repeated(items.pop(), token))
                    self._next()
                    continue
                case "mark" if token[0] == "(":
                    self._next()
                    items.append(Item(self._alternatives(depth + 1), 1))
                    if self._mark() != ")":
                        raise self._unexpected()
                case "rule":
                    break
                case "mark" if token[0] in "|)":
                    break
                case _:
                    raise self._unexpected()
            self.num_elements += items[-1].size
            self._next()
        return items

    def _repeated(self, item: Item, times: re.Match[str]) -> Item:
        """Return the item repeated; llama.cpp copies its elements up to the lower bound, and adds a rule for each
        further repetition."""
        low, high = _bounds(times)
        num_optional = 1 if high is None else high - low
        self.num_rules += num_optional
        self.num_elements += item.size * max(low - 1, 0) + num_optional * (item.size + 3)
        nested = item.node if (item.low, item.high) == (1, 1) else [[item]]
        return Item(nested, item.size * low + 1, low, high)


def _bounds(times: re.Match[str]) -> tuple[int, int | None]:
    simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
    if times[0] in simple:
        return simple[times[0]]
    digits = max(len(times["low"]), len(times["high"] or ""))
    low = int(times["low"]) if digits < 20 else MAX_REPETITIONS + 1
    high = low if not times["upto"] else int(times["high"]) if times["high"] and digits < 20 else None
    if max(low, high or 0) > MAX_REPETITIONS:
        raise ConfigError(f"has the repetition {times[0]}; at most {MAX_REPETITIONS:,} are allowed")
    if high is not None and low > high:
        raise ConfigError(f"has the repetition {times[0]}: the first number must not be larger than the second")
    return low, high


class _Beginnings:
    """First items of each rule, including those behind items that may be empty: llama.cpp follows them all at once."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._may_be_empty: set[str] = set()
        users: dict[str, set[str]] = {}
        for name, alternatives in rules.items():
            for used in _names(alternatives):
                users.setdefault(used, set()).add(name)
        undecided = list(rules)
        while undecided:
            name = undecided.pop()
            if name not in self._may_be_empty and any(map(self._is_empty_sequence, rules[name])):
                self._may_be_empty.add(name)
                undecided.extend(users.get(name, ()))

    def check(self) -> None:
        """Raise ConfigError for left recursion, and for a rule that can begin in more than MAX_WAYS ways."""
        firsts = {name: set(self._first_rules(alternatives)) for name, alternatives in self._rules.items()}
        ways: dict[str, int] = {}
        try:
            for name in TopologicalSorter(firsts).static_order():
                ways[name] = max(1, self._num_ways(self._rules.get(name, []), ways))
                if ways[name] > MAX_WAYS:
                    raise ConfigError(f"has a rule, {name}, that can begin in more than {MAX_WAYS:,} ways, the limit")
        except CycleError as error:
            raise ConfigError(
                f"has left recursion: rule {error.args[1][0]} can begin with itself, which llama.cpp never finishes"
            ) from error

    def _is_empty(self, item: Item) -> bool:
        if item.low == 0 or isinstance(item.node, str):
            return item.low == 0 or item.node in self._may_be_empty
        return not isinstance(item.node, Terminal) and any(map(self._is_empty_sequence, item.node))

    def _is_empty_sequence(self, items: Sequence) -> bool:
        return all(map(self._is_empty, items))

    def _firsts(self, items: Sequence) -> Iterator[Item]:
        for item in items:
            yield item
            if not self._is_empty(item):
                return

    def _first_rules(self, alternatives: Alternatives) -> Iterator[str]:
        for items in alternatives:
            for item in self._firsts(items):
                if isinstance(item.node, str):
                    yield item.node
                elif not isinstance(item.node, Terminal):
                    yield from self._first_rules(item.node)

    def _num_ways(self, alternatives: Alternatives, ways: dict[str, int]) -> int:
        return sum(self._ways_of(item, ways) for items in alternatives for item in self._firsts(items))

    def _ways_of(self, item: Item, ways: dict[str, int]) -> int:
        if isinstance(item.node, Terminal):
            return 1
        if isinstance(item.node, str):
            num, is_empty = ways[item.node], item.node in self._may_be_empty
        else:
            num, is_empty = self._num_ways(item.node, ways), any(map(self._is_empty_sequence, item.node))
        # llama.cpp makes each further repetition a rule; if the item may be empty, each continues with all later ones
        return num * max(item.high or item.low + 1, 1) ** 2 if is_empty else num


def _names(alternatives: Alternatives) -> Iterator[str]:
    """Yield the names of all rules referenced in the alternatives."""
    for items in alternatives:
        for item in items:
            if isinstance(item.node, str):
                yield item.node
            elif not isinstance(item.node, Terminal):
                yield from _names(item.node)
