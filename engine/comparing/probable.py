"""Most probable continuations: best-first search over the model's exact distributions. Pure: the caller asks the model.

The prefix with the highest probability is expanded first (uniform-cost search). A continuation is the next most
probable one once no prefix that is open has a higher probability, as each further token can only lower it.
"""

import heapq
import math
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from engine.comparing.branch_tree import TokenPath


class Candidates(NamedTuple):
    """Candidates that follow a prefix, most probable first: ids, natural log-probabilities, and which end the text."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    ends: Sequence[bool]


class Continuation(NamedTuple):
    """Tokens of a continuation, and the natural log-probability of each given those before it.

    is_exact: no continuation can be more probable, not even one with a token that was not among the candidates.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    is_ended: bool = False
    is_exact: bool = True

    @property
    def logprob(self) -> float:
        """Natural log-probability of all tokens together."""
        return math.fsum(self.logprobs)

    def path(self, name: str) -> TokenPath:
        """Return it as a path of the branch tree, under this name."""
        return TokenPath(name, np.array(self.ids, np.int32), np.array(self.logprobs), np.zeros(len(self.ids), np.bool_))


class ProbableSearch:
    """Search for the `num` most probable continuations of `depth` tokens, or fewer where they end the text.

    Take prefixes from `next_prefix` while it returns some, ask the model for the candidates after each, and give them
    to `expand`, in any order; the search is over once `next_prefix` returns None and none is awaited. mass: it is also
    over when those found have this probability together. most_expanded: limit of the prefixes that are asked for.
    """

    def __init__(self, num: int, depth: int, *, mass: float = 1.0, most_expanded: int = 500) -> None:
        self.num, self.depth, self.mass, self.most_expanded = num, depth, mass, most_expanded
        self.found: list[Continuation] = []
        self.num_asked = 0
        self._order = count()
        self._open: list[tuple[float, int, Continuation]] = []
        self._complete: list[tuple[float, int, Continuation]] = []
        self._awaited: dict[tuple[int, ...], Continuation] = {}
        self._beyond = -math.inf  # log-probability that a continuation outside the candidates has at most
        self._push(Continuation((), ()))

    @property
    def found_mass(self) -> float:
        """Probability of all continuations found so far together."""
        return math.fsum(math.exp(one.logprob) for one in self.found)

    @property
    def is_cut_short(self) -> bool:
        """True where the limit of prefixes ended the search before it had found all that was asked for."""
        return self.num_asked >= self.most_expanded and not self._is_enough and bool(self._open)

    @property
    def _is_enough(self) -> bool:
        return len(self.found) >= self.num or self.found_mass >= self.mass

    def best(self) -> list[Continuation]:
        """Return what was found, and after a search that was cut short the most probable of what it had seen: those may
        be surpassed by others, and some are shorter than `depth`."""
        if self._is_enough or not (self._open or self._awaited):
            return list(self.found)
        seen = [one for _, _, one in heapq.nsmallest(self.num - len(self.found), [*self._complete, *self._open])]
        return [*self.found, *(one._replace(is_exact=False) for one in seen if one.ids)]

    def next_prefix(self) -> tuple[int, ...] | None:
        """Return the tokens of the most probable open prefix, to be expanded; None where there is none at present."""
        if self._is_enough or not self._open or self.num_asked >= self.most_expanded:
            return None
        if len(self.found) + len(self._complete) >= self.num and -self._open[0][0] < self._least_needed():
            return None
        _, _, best = heapq.heappop(self._open)
        self._awaited[best.ids] = best
        self.num_asked += 1
        return best.ids

    def _least_needed(self) -> float:
        """Return the log-probability of the last of the best complete ones: a lower prefix cannot displace it."""
        rest = heapq.nsmallest(self.num - len(self.found), self._complete)
        return -rest[-1][0]

    def expand(self, prefix: tuple[int, ...], candidates: Candidates) -> None:
        """Take the candidates that follow a prefix of `next_prefix`."""
        before = self._awaited.pop(prefix)
        for token, logprob, is_end in zip(*candidates, strict=True):
            one = Continuation((*before.ids, token), (*before.logprobs, logprob), is_end)
            self._push(one, is_complete=is_end or len(one.ids) >= self.depth)
        if candidates.logprobs and sum(map(math.exp, candidates.logprobs)) < 1 - 1e-6:
            self._beyond = max(self._beyond, before.logprob + candidates.logprobs[-1])
        self._settle()

    def _push(self, one: Continuation, *, is_complete: bool = False) -> None:
        heapq.heappush(self._complete if is_complete else self._open, (-one.logprob, next(self._order), one))

    def _settle(self) -> None:
        """Move to `found` what no open prefix can surpass."""
        while self._complete and not self._is_enough:
            logprob = -self._complete[0][0]
            highest = max((one.logprob for one in self._awaited.values()), default=-math.inf)
            if self._open:
                highest = max(highest, -self._open[0][0])
            if logprob < highest:
                return
            _, _, one = heapq.heappop(self._complete)
            self.found.append(one._replace(is_exact=logprob >= self._beyond))
