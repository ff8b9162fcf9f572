"""Models that a list would show alike: what tells each from the others."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from engine.models.details import readable

K = TypeVar("K", str, Path)


def told_apart(shown: Mapping[K, str]) -> dict[K, str]:
    """Return what tells models, by their paths, from those shown alike: the file, with as many folders as that takes.

    Empty for a model that is shown like no other.
    """
    alike: defaultdict[str, list[K]] = defaultdict(list)
    for path, text in shown.items():
        alike[text].append(path)
    groups = [group for group in alike.values() if len(group) > 1]
    return dict.fromkeys(shown, "") | {path: end for group in groups for path, end in _ends(group).items()}


def _ends(paths: Sequence[K]) -> dict[K, str]:
    """Return the shortest ends of these paths, of one length, that are all different."""
    parts = [Path(path).parts for path in paths]
    for num in range(1, max(map(len, parts)) + 1):
        ends = [readable(Path(*one[-num:])) for one in parts]
        if len(set(ends)) == len(ends):
            break
    return dict(zip(paths, ends, strict=True))
