"""Branch tree: the token paths of trials with the same prompt, merged where they begin alike. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


class TokenPath(NamedTuple):
    """Generated tokens of a trial, (n,): ids, natural log-probabilities (NaN where unknown), which were forced."""

    trial_id: str
    ids: Ids
    logprobs: Floats
    is_forced: npt.NDArray[np.bool_]

    @classmethod
    def empty(cls, trial_id: str) -> Self:
        """Return the path of a trial that generated nothing."""
        return cls(trial_id, np.empty(0, np.int32), np.empty(0, np.float64), np.empty(0, np.bool_))


class Branch(NamedTuple):
    """Run of tokens up to where the trials through it part, or one ends.

    parent: index of the branch before it, None for the first; depth: number of branches before it. start, end: its
    tokens on the path of `trial_id`. p: model's probability of its first token; logprob: of all of its tokens, given
    those before them, in nats; both None where a figure is unknown. is_forced: its first token was forced in each trial
    that has it. trials: ids of those through it, in the order given; ends: of those that end with it.
    """

    parent: int | None
    depth: int
    trial_id: str
    start: int
    end: int
    p: float | None
    logprob: float | None
    is_forced: bool
    trials: tuple[str, ...]
    ends: tuple[str, ...]

    @property
    def surprise_bits(self) -> float | None:
        """Mean surprise of its tokens, in bits; None where a figure is unknown."""
        return None if self.logprob is None else -self.logprob / math.log(2) / (self.end - self.start)


class _Path(NamedTuple):
    """Path with its ids as a list: numpy takes longer for a few tokens than Python does."""

    ids: list[int]
    of: TokenPath


@dataclass(slots=True)
class _Node:
    """Node of the radix tree: tokens start to end of `path`."""

    path: _Path
    start: int
    end: int
    trials: list[TokenPath] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    children: dict[int, "_Node"] = field(default_factory=dict)

    def end_of_shared(self, ids: list[int]) -> int:
        """Return the position up to which these ids are those of its tokens."""
        own, end = self.path.ids, min(self.end, len(ids))
        if own[self.start : end] == ids[self.start : end]:
            return end
        return next(at for at in range(self.start, end) if own[at] != ids[at])

    def split(self, at: int) -> None:
        """Move the tokens from `at` on to a new only child."""
        rest = _Node(self.path, at, self.end, list(self.trials), self.ends, self.children)
        self.end, self.ends, self.children = at, [], {self.path.ids[at]: rest}

    def figures(self) -> tuple[float | None, float | None]:
        """Return the probability of its first token, and the log-probability of all."""
        logprobs = self.path.of.logprobs[self.start : self.end].tolist()
        if not logprobs:
            return None, None
        first, total = logprobs[0], sum(logprobs)
        return (None if math.isnan(first) else math.exp(first)), (None if math.isnan(total) else total)


def branches_of(paths: Iterable[TokenPath]) -> list[Branch]:
    """Return the merged paths as branches, each before those that follow it; siblings with more trials come first.

    A path without tokens belongs to no branch.
    """
    roots: dict[int, _Node] = {}
    for path in paths:
        if len(path.ids):
            _insert(roots, path)
    return _flattened(roots)


def _insert(roots: dict[int, _Node], path: TokenPath) -> None:
    ids = path.ids.tolist()
    children, position = roots, 0
    while True:
        node = children.get(ids[position])
        if node is None:
            children[ids[position]] = _Node(_Path(ids, path), position, len(ids), [path], [path.trial_id])
            return
        position = node.end_of_shared(ids)
        if position < node.end:
            node.split(position)
        node.trials.append(path)
        if position == len(ids):
            node.ends.append(path.trial_id)
            return
        children = node.children


def _flattened(roots: dict[int, _Node]) -> list[Branch]:
    found: list[Branch] = []
    waiting: list[tuple[_Node, int | None, int]] = [(node, None, 0) for node in _in_order(roots)[::-1]]
    while waiting:
        node, parent, depth = waiting.pop()
        p, logprob = node.figures()
        is_forced = all(bool(path.is_forced[node.start]) for path in node.trials)
        trials, ends = tuple(path.trial_id for path in node.trials), tuple(node.ends)
        found.append(
            Branch(parent, depth, node.path.of.trial_id, node.start, node.end, p, logprob, is_forced, trials, ends)
        )
        waiting += [(child, len(found) - 1, depth + 1) for child in _in_order(node.children)[::-1]]
    return found


def _in_order(nodes: dict[int, _Node]) -> list[_Node]:
    return sorted(nodes.values(), key=lambda node: -len(node.trials))
