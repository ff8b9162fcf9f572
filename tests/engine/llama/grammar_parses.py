"""Parses counted as llama.cpp makes them: repetitions written out as rules, every stack advanced by each character."""

from collections import Counter
from collections.abc import Iterator

from engine.llama.grammar_syntax import Alternatives, Item, Rules, Terminal

Stack = tuple[tuple[str, int, int], ...]
Symbol = tuple[bool, str]
"""Either a rule and its name, or a character and those that match."""


class Expanded:
    """Grammar with its repetitions written out; only "", [] and . as terminals, without ranges and escapes."""

    def __init__(self, rules: Rules, alphabet: str) -> None:
        self._alphabet = alphabet
        self._rules: dict[str, list[list[Symbol]]] = {}
        self._advanced: dict[Stack, list[Stack]] = {}
        for name, alternatives in rules.items():
            self._rules[name] = self._expanded(alternatives)

    def _added(self, alternatives: list[list[Symbol]]) -> Symbol:
        name = f"_{len(self._rules)}"
        self._rules[name] = alternatives
        return True, name

    def _expanded(self, alternatives: Alternatives) -> list[list[Symbol]]:
        return [[symbol for item in items for symbol in self._item(item)] for items in alternatives]

    def _item(self, item: Item) -> list[Symbol]:
        if isinstance(item.node, Terminal):
            text = item.node.text
            inside = [self._alphabet] if text == "." else [text[1:-1]] if text[0] == "[" else [*text[1:-1]]
            once = [(False, characters) for characters in inside]
        else:
            once = [(True, item.node) if isinstance(item.node, str) else self._added(self._expanded(item.node))]
        if (item.low, item.high) == (1, 1):
            return once
        optional: list[Symbol] = []
        if item.high is None:
            optional = [self._added([[]])]
            self._rules[optional[0][1]] = [once + optional, []]
        for _ in range((item.high or item.low) - item.low):
            optional = [self._added([once + optional, []])]
        return once * item.low + optional

    def begin(self) -> list[Stack]:
        """Return the stacks before the first character."""
        return [one for number in range(len(self._rules["root"])) for one in self.advanced(self._push("root", number))]

    def _push(self, rule: str, number: int, position: int = 0, below: Stack = ()) -> Stack:
        return (*below, (rule, number, position)) if position < len(self._rules[rule][number]) else below

    def advanced(self, stack: Stack) -> list[Stack]:
        """Return the stacks that it becomes, each with a character at its top."""
        if stack not in self._advanced:
            found, seen, todo = [], {stack}, [stack]
            while todo:
                one = todo.pop()
                if not one:
                    continue
                rule, number, position = one[-1]
                is_rule, name = self._rules[rule][number][position]
                if not is_rule:
                    found.append(one)
                    continue
                below = self._push(rule, number, position + 1, one[:-1])
                new = {self._push(name, each, 0, below) for each in range(len(self._rules[name]))} - seen
                seen |= new
                todo += new
            self._advanced[stack] = found
        return self._advanced[stack]

    def read(self, stacks: Counter[Stack], character: str) -> Counter[Stack]:
        """Return the stacks behind a character, each with the number of parses that lead to it, not yet advanced."""
        behind: Counter[Stack] = Counter()
        for stack, num in stacks.items():
            rule, number, position = stack[-1]
            if character in self._rules[rule][number][position][1]:
                behind[self._push(rule, number, position + 1, stack[:-1])] += num
        return behind

    def single_stacks(self, num_characters: int) -> set[Stack]:
        """Return each stack that some text of so many characters leads to, not advanced."""
        found: set[Stack] = set()
        now = {self._push("root", number) for number in range(len(self._rules["root"]))}
        for _ in range(num_characters):
            found |= now
            now = {
                behind
                for stack in now
                for one in self.advanced(stack)
                for character in self._alphabet
                for behind in self.read(Counter([one]), character)
            } - found
        return found | now

    def num_parses(self, start: Stack, num_characters: int) -> Iterator[int]:
        """Yield the number of parses of each text of at most so many characters that can follow a stack."""
        todo = [(Counter(self.advanced(start)), 0)]
        while todo:
            stacks, num_read = todo.pop()
            for character in self._alphabet:
                behind = self.read(stacks, character)
                yield behind.total()
                if behind and num_read + 1 < num_characters:
                    following: Counter[Stack] = Counter()
                    for stack, num in behind.items():
                        for one in self.advanced(stack):
                            following[one] += num
                    todo.append((following, num_read + 1))
