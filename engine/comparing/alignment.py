"""Alignment of texts and tokens: where they diverge, how their words differ, and which of them are equal."""

import difflib
import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Literal, NamedTuple

from engine.results import StepTable
from engine.units import counted

MAX_WORDS = 4_000
"""Texts with more words are compared by lines: matching takes time quadratic in the number of parts."""

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
    told = [f"{', '.join(arms)} {_for_several(way) if len(arms) > 1 else way}" for way, arms in most_first[:MAX_NAMED]]
    if len(most_first) > MAX_NAMED:
        told.append(f"{len(most_first) - MAX_NAMED} more continue differently")
    start = f"The first {counted(num_same, 'token')} are the same; then" if num_same > 1 else _short_start(num_same)
    return f"{start} {'; '.join(told)}."


def _short_start(num_same: int) -> str:
    return "Only the first token is the same; then" if num_same else "They diverge at the first token:"


def _for_several(way: str) -> str:
    return way.replace("continues with", "continue with").replace("ends there", "end there")


def _words(text: str) -> list[str]:
    """Split into words with the white space before them, so that joined they are the text again."""
    return re.findall(r"\s*+\S++|\s++", text)
