"""Models that a list would show alike: the ends of their paths that distinguish them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from engine.files import num_distinguishing
from engine.models.details import readable

K = TypeVar("K", str, Path)


def distinguishing_ends(labels: Mapping[K, str]) -> dict[K, str]:
    """Return for each model, by its path, the file with as many folders as distinguish it from others of its label.

    Empty for a model whose label no other has.
    """
    alike: defaultdict[str, list[K]] = defaultdict(list)
    for path, label in labels.items():
        alike[label].append(path)
    groups = [group for group in alike.values() if len(group) > 1]
    return dict.fromkeys(labels, "") | {path: end for group in groups for path, end in _ends(group).items()}


def _ends(group: Sequence[K]) -> dict[K, str]:
    """Return the ends of these paths that all differ, with equally many parts of each."""
    paths = [Path(path) for path in group]
    num = max(num_distinguishing(paths))
    return {key: readable(Path(*path.parts[-num:])) for key, path in zip(group, paths, strict=True)}
