"""Texts and tokens beside each other: where they part, how their words differ, and which of them are the same."""

import difflib
import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Literal, NamedTuple

from engine.results import StepTable
from engine.units import counted

MAX_WORDS = 4_000
"""Texts with more are compared by lines: matching takes time with the square of the number of parts."""

MAX_NAMED = 3
"""Ways of going on that a sentence names; those that more arms chose come first."""

SegmentKind = Literal["same", "added", "missing"]


class Segment(NamedTuple):
    """A stretch of a text beside its reference: in both, only here ("added"), or only there ("missing")."""

    kind: SegmentKind
    text: str


class Fold(NamedTuple):
    """A text that occurred, and where: positions in the order given, the first one first."""

    text: str
    positions: tuple[int, ...]


def common_prefix(sequences: Sequence[Sequence[object]]) -> int:
    """How many items all sequences begin with alike; 0 of no sequence."""
    columns = zip(*sequences, strict=False)
    return sum(1 for _ in takewhile(lambda items: all(item == items[0] for item in items), columns))


def diff(text: str, reference: str) -> list[Segment]:
    """`text` word by word against `reference`: joined, all but the missing segments give `text` again."""
    ours, theirs = _words(text), _words(reference)
    if max(len(ours), len(theirs)) > MAX_WORDS:
        ours, theirs = text.splitlines(keepends=True), reference.splitlines(keepends=True)
    segments: list[Segment] = []
    for what, i, j, k, m in difflib.SequenceMatcher(None, theirs, ours, autojunk=False).get_opcodes():
        if what == "equal":
            segments.append(Segment("same", "".join(ours[k:m])))
            continue
        if i < j:
            segments.append(Segment("missing", "".join(theirs[i:j])))
        if k < m:
            segments.append(Segment("added", "".join(ours[k:m])))
    return segments


def fold(texts: Sequence[str]) -> list[Fold]:
    """Equal texts as one, the most frequent first, else by first occurrence."""
    positions: dict[str, list[int]] = {}
    for position, text in enumerate(texts):
        positions.setdefault(text, []).append(position)
    folds = [Fold(text, tuple(where)) for text, where in positions.items()]
    return sorted(folds, key=lambda one: -len(one.positions))


def parting(tables: Sequence[StepTable]) -> int | None:
    """How many tokens all begin with alike; None where they cannot be matched: fewer than two, or other tokenizers."""
    if len(tables) < 2 or len({table.vocabulary.hash for table in tables}) > 1:
        return None
    return common_prefix([table.ids for table in tables])


def parting_sentence(labels: Sequence[str], tables: Sequence[StepTable]) -> str:
    """Where the answers of arms with these labels part, and how each goes on; empty of fewer than two."""
    if len(tables) < 2:
        return ""
    num_same = parting(tables)
    if num_same is None:
        characters = counted(common_prefix([table.text for table in tables]), "character")
        return (
            f"These models cut text into different tokens, so only the texts can be matched: the first {characters} "
            "are the same."
        )
    if all(len(table) == num_same for table in tables):
        return f"All {len(tables)} arms gave the same {counted(num_same, 'token')}."
    ways: dict[str, list[str]] = {}
    for label, table in zip(labels, tables, strict=True):
        is_over = len(table) == num_same
        way = "ends there" if is_over else f"goes on with “{table.vocabulary.text(table.ids[num_same])}”"
        ways.setdefault(way, []).append(label)
    most_first = sorted(ways.items(), key=lambda item: -len(item[1]))
    told = [f"{', '.join(arms)} {_for_several(way) if len(arms) > 1 else way}" for way, arms in most_first[:MAX_NAMED]]
    if len(most_first) > MAX_NAMED:
        told.append(f"{len(most_first) - MAX_NAMED} more go other ways")
    start = f"The first {counted(num_same, 'token')} are the same; then" if num_same > 1 else _short_start(num_same)
    return f"{start} {'; '.join(told)}."


def _short_start(num_same: int) -> str:
    return "Only the first token is the same; then" if num_same else "They part at the first token:"


def _for_several(way: str) -> str:
    return way.replace("goes on", "go on").replace("ends there", "end there")


def _words(text: str) -> list[str]:
    """Words with the white space before them, so that joined they are the text again."""
    return re.findall(r"\s*+\S++|\s++", text)
