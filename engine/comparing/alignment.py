"""Alignment of texts and tokens: where they diverge, how their words differ, and which of them are equal."""

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Literal, NamedTuple

from engine.steps import StepTable
from engine.units import counted

MAX_WORDS = 4_000
"""Texts with more words are compared by lines."""

MAX_LINES = 20_000
"""Texts with more lines between their common beginning and end are not matched there: it would take seconds."""

MAX_NAMED = 3
"""Number of continuations that a sentence names; those that more variants chose come first."""

SegmentKind = Literal["same", "added", "missing"]


class Segment(NamedTuple):
    """A stretch of a text compared with its reference.

    kind: in both ("same"), only in the text ("added"), or only in the reference ("missing").
    """

    kind: SegmentKind
    text: str


class Fold(NamedTuple):
    """A distinct text and its positions in the order given, the first one first."""

    text: str
    positions: tuple[int, ...]


def common_prefix(sequences: Sequence[Sequence[object]]) -> int:
    """Return the number of leading items that all sequences have in common; 0 for no sequences."""
    columns = zip(*sequences, strict=False)
    return sum(1 for _ in takewhile(lambda items: all(item == items[0] for item in items), columns))


def diff(text: str, reference: str) -> list[Segment]:
    """Compare `text` word by word with `reference`: all segments but the missing ones, joined, are `text` again."""
    ours, theirs = _words(text), _words(reference)
    if max(len(ours), len(theirs)) > MAX_WORDS:
        ours, theirs = text.splitlines(keepends=True), reference.splitlines(keepends=True)
    segments: list[Segment] = []
    at = start = 0
    for place, other, size in [*_matching(ours, theirs), (len(ours), len(theirs), 0)]:
        parts: list[tuple[SegmentKind, list[str]]] = [
            ("missing", theirs[start:other]),
            ("added", ours[at:place]),
            ("same", ours[place : place + size]),
        ]
        segments += [Segment(kind, "".join(part)) for kind, part in parts if part]
        at, start = place + size, other + size
    return segments


def fold(texts: Sequence[str]) -> list[Fold]:
    """Group equal texts, the most frequent first, else by first occurrence."""
    positions: dict[str, list[int]] = {}
    for position, text in enumerate(texts):
        positions.setdefault(text, []).append(position)
    folds = [Fold(text, tuple(where)) for text, where in positions.items()]
    return sorted(folds, key=lambda one: -len(one.positions))


def parting(tables: Sequence[StepTable]) -> int | None:
    """Return the number of leading tokens that all have in common.

    None where they cannot be matched: fewer than two, or different vocabularies.
    """
    if len(tables) < 2 or len({table.vocabulary.hash for table in tables}) > 1:
        return None
    return common_prefix([table.ids for table in tables])


def parting_sentence(labels: Sequence[str], tables: Sequence[StepTable]) -> str:
    """Describe where the answers of variants with these labels diverge, and how each continues.

    Empty for fewer than two variants.
    """
    if len(tables) < 2:
        return ""
    num_same = parting(tables)
    if num_same is None:
        characters = counted(common_prefix([table.text for table in tables]), "character")
        return (
            f"These models tokenise text differently, so only the texts can be compared: the first {characters} "
            "are the same."
        )
    if all(len(table) == num_same for table in tables):
        return f"All {len(tables)} variants gave the same {counted(num_same, 'token')}."
    ways: dict[str, list[str]] = {}
    for label, table in zip(labels, tables, strict=True):
        is_over = len(table) == num_same
        way = "ends there" if is_over else f"continues with “{table.vocabulary.text(table.ids[num_same])}”"
        ways.setdefault(way, []).append(label)
    most_first = sorted(ways.items(), key=lambda item: -len(item[1]))
    continuations = [
        f"{', '.join(arms)} {_for_several(way) if len(arms) > 1 else way}" for way, arms in most_first[:MAX_NAMED]
    ]
    if len(most_first) > MAX_NAMED:
        continuations.append(f"{len(most_first) - MAX_NAMED} more continue differently")
    start = f"The first {counted(num_same, 'token')} are the same; then" if num_same > 1 else _short_start(num_same)
    return f"{start} {'; '.join(continuations)}."


def _short_start(num_same: int) -> str:
    return "Only the first token is the same; then" if num_same else "They diverge at the first token:"


def _for_several(way: str) -> str:
    return way.replace("continues with", "continue with").replace("ends there", "end there")


def _matching(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int, int]]:
    """Return the stretches that both have in common, in order: position in ours, in theirs, and length.

    They are the common beginning and end, and between them a longest common subsequence.
    """
    first = common_prefix([ours, theirs])
    last = common_prefix([ours[first:][::-1], theirs[first:][::-1]])
    middle, other = ours[first : len(ours) - last], theirs[first : len(theirs) - last]
    pairs = _common_subsequence(middle, other) if max(len(middle), len(other)) <= MAX_LINES else []
    stretches = [[0, 0, first]]
    for place, position in ((first + i, first + j) for i, j in pairs):
        begin, start, size = stretches[-1]
        if (begin + size, start + size) == (place, position):
            stretches[-1][2] += 1
        else:
            stretches.append([place, position, 1])
    return [(i, j, size) for i, j, size in [*stretches, [len(ours) - last, len(theirs) - last, last]] if size]


def _common_subsequence(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int]]:
    """Return the positions of a longest common subsequence in both.

    Bit-parallel (Hyyrö 2004, "Bit-parallel LCS-length computation revisited"): one integer for each row of the table,
    whose zero bits are the columns at which the length grows. n rows of m bits: 50 MB and 0.3 s for 20,000 lines.
    """
    places: dict[str, int] = {}
    for column, word in enumerate(theirs):
        places[word] = places.get(word, 0) | 1 << column
    everything = (1 << len(theirs)) - 1
    row, rows = everything, list[int]()
    for word in ours:
        matches = row & places.get(word, 0)
        row = ((row + matches) | (row - matches)) & everything
        rows.append(row)
    found: list[tuple[int, int]] = []
    at, column = len(ours) - 1, len(theirs) - 1
    while at >= 0 and column >= 0:
        if rows[at] >> column & 1:
            column -= 1
        elif at and not rows[at - 1] >> column & 1:
            at -= 1
        else:
            found.append((at, column))
            at, column = at - 1, column - 1
    return found[::-1]


def _words(text: str) -> list[str]:
    """Split into words with the white space before them, so that joined they are the text again."""
    return re.findall(r"\s*+\S++|\s++", text)
