"""Child program of a Resampler: runs kept candidates through llama.cpp's sampler chain."""

import ctypes
import math
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from engine.errors import ConfigError
from engine.llama.candidates import Candidates
from engine.llama.frozen import (
    MOST_CANDIDATES,
    FindFlips,
    Flip,
    Flips,
    FrozenSteps,
    NotKept,
    Resample,
    Resampled,
)
from engine.llama.kernel import CANDIDATE
from engine.llama.library import quick
from engine.llama.sampler import chain_without_draw
from engine.process.serving import serve
from engine.specs import Sampling
from engine.stages import TEMPERATURE, chain_of, stages_of

NUM_BISECTIONS = 24
TEMPERATURES = (*np.geomspace(0.02, 10, 48).tolist(),)
SHARES = tuple(np.linspace(0.02, 0.98, 49).tolist())
SMALL_SHARES = tuple(np.geomspace(1e-4, 0.98, 49).tolist())
MOST_OTHERS = 1 << 14
"""Tokens that stand for the others of a step at most: a result that would take more of them is not exact."""
_OTHER = -1
"""Id of a token outside the candidates: all of them together have the probability that is left, and none more than the
last candidate."""
_WHOLE = np.dtype((np.void, CANDIDATE.itemsize))
"""A row of CANDIDATE without its fields, as which it is copied several times as fast."""
_apply = quick(llama.llama_sampler_apply, None, ctypes.c_void_p, ctypes.c_void_p)
_accept = quick(llama.llama_sampler_accept, None, ctypes.c_void_p, ctypes.c_int32)


class Drawn(NamedTuple):
    """Outcome of one step: its token, and the ids and probabilities of what was left to draw from, both of a forced
    step empty."""

    id: int
    ids: npt.NDArray[np.int32]
    p: npt.NDArray[np.float32]
    is_exact: bool


class Others(NamedTuple):
    """Tokens that stand for those outside the candidates: how many, the logit of each, and whether they are enough."""

    num: int
    logit: float
    are_enough: bool


_NO_OTHERS = Others(0, 0.0, True)


class Listing(NamedTuple):
    """Candidates of n steps in the order in which a chain takes them, with logit_bias added.

    rows: (n, k) of CANDIDATE as _WHOLE, of which `sizes` (n,) are not banned; num_sure (n,): how many of these no other
    token can come before; is_complete (n,): whether every biased token is among them.
    """

    rows: npt.NDArray[np.void]
    sizes: list[int]
    num_sure: list[int]
    is_complete: list[bool]


class Course(NamedTuple):
    """What is the same for all steps of a request.

    top_k: None without that stage, which may be the first; is_best_first: the candidates come by falling logits, and
    stay so; is_guessed: the chain needs to know more of the others than is known.
    """

    chain: Any
    listing: Listing
    top_k: int | None
    starts_with_top_k: bool
    is_best_first: bool
    is_guessed: bool


class Steps:
    """Candidates of steps, as arrays."""

    def __init__(self, given: FrozenSteps) -> None:
        num = len(given.draws)
        self.given = given
        self.ids = np.frombuffer(given.top_ids, "<i4").reshape(num, given.k)
        self.logits = np.frombuffer(given.logits, "<f4").reshape(num, given.k)
        self.num_known = (self.ids >= 0).sum(axis=1).tolist()
        self._others = [self._others_of(index) for index in range(num)]
        self._room = Candidates(given.num_vocab + given.k)
        self._listed: tuple[object, Listing] | None = None

    def _others_of(self, index: int) -> Others:
        """Return the fewest tokens that have the probability of the others and are no more probable than the last
        candidate."""
        num, others = self.num_known[index], self.given.others[index]
        num_others = self.given.num_vocab - num
        if not num or not num_others:
            return _NO_OTHERS
        logits = self.logits[index, :num].astype(np.float64)
        highest, last = float(logits[0]), float(logits[-1])
        normaliser = highest + math.log(np.exp(logits - highest).sum() / max(1 - others, 1e-30))
        p_last = math.exp(min(last - normaliser, 0))
        if p_last == 0:
            return _NO_OTHERS
        num_needed = min(num_others, max(1, math.ceil(others / p_last)))
        num_listed = min(num_needed, MOST_OTHERS)
        logit = last + math.log(max(others / p_last / num_listed, 1e-30))
        return Others(num_listed, logit, num_listed == num_needed)

    def drawn(self, sampling: Sampling) -> Iterator[Drawn]:
        """Yield the outcome of each step under these parameters."""
        given, course = self.given, self._course(sampling)
        try:
            for token in given.ids[: given.first][-_num_remembered(sampling) :]:
                _accept(course.chain, token)
            for index, token in enumerate(given.ids[given.first :]):
                if math.isnan(given.draws[index]):
                    yield Drawn(token, self.ids[index, :0], self.logits[index, :0], True)
                else:
                    yield self._drawn(index, course)
                _accept(course.chain, token)
        finally:
            llama.llama_sampler_free(course.chain)

    def _course(self, sampling: Sampling) -> Course:
        stages = chain_of(sampling)
        is_sorted = stages[:1] == ("top_k",)
        return Course(
            chain_without_draw(sampling, self.given.num_vocab, len(self.given.ids)),
            self._listing(sampling.logit_bias, is_sorted=is_sorted),
            sampling.top_k if "top_k" in stages else None,
            is_sorted,
            is_sorted and all(value == -math.inf for _, value in sampling.logit_bias),
            _depends_on_others(sampling),
        )

    def _drawn(self, index: int, course: Course) -> Drawn:
        listing, num_sure = course.listing, course.listing.num_sure[index]
        is_among_known = course.top_k is not None and course.top_k <= num_sure
        others = _NO_OTHERS if course.starts_with_top_k and is_among_known else self._others[index]
        size = listing.sizes[index]
        if not size + others.num:
            raise ConfigError("logit_bias leaves no candidate to choose")
        rows = self._room.take(size + others.num, is_sorted=course.is_best_first)
        rows[:size].view(_WHOLE)[:] = listing.rows[index, :size]
        if others.num:
            rows["id"][size:], rows["logit"][size:] = _OTHER, others.logit
        _apply(course.chain, self._room.pointer)
        drawn = self._draw(index)
        is_decided = listing.is_complete[index] and others.are_enough and not course.is_guessed
        if is_decided and self._is_cut_off(index, drawn, is_among_known=is_among_known, has_others=others.num > 0):
            return drawn
        return drawn._replace(is_exact=False)

    def _listing(self, bias: tuple[tuple[int, float], ...], *, is_sorted: bool) -> Listing:
        """Return the candidates by falling logits without the bias, or else by id."""
        if self._listed is None or self._listed[0] != (bias, is_sorted):
            self._listed = (bias, is_sorted), self._list(bias, is_sorted=is_sorted)
        return self._listed[1]

    def _list(self, bias: tuple[tuple[int, float], ...], *, is_sorted: bool) -> Listing:
        num, k = self.ids.shape
        logits = np.where(self.ids >= 0, self.logits, -np.inf).astype(np.float32)
        is_complete, num_moved = np.ones(num, bool), np.zeros(num, np.int64)
        if bias:
            tokens, values = (np.array(column) for column in zip(*sorted(bias), strict=True))
            place = np.minimum(np.searchsorted(tokens, self.ids), len(tokens) - 1)
            is_biased = tokens[place] == self.ids
            logits += np.where(is_biased, values[place], 0).astype(np.float32)
            num_moved = (is_biased & (values[place] > -np.inf)).sum(axis=1)
            is_complete = num_moved == (values > -np.inf).sum()
        is_left = logits > -np.inf
        order = np.argsort(np.where(is_left, np.arange(k) if is_sorted else self.ids, 1 << 31), axis=1)
        rows = np.zeros((num, k), CANDIDATE)
        rows["id"], rows["logit"] = np.take_along_axis(self.ids, order, 1), np.take_along_axis(logits, order, 1)
        sizes = is_left.sum(axis=1)
        return Listing(rows.view(_WHOLE), sizes.tolist(), (sizes - num_moved).tolist(), is_complete.tolist())

    def _draw(self, index: int) -> Drawn:
        """Draw as llama.cpp's `dist` does (llama_sampler_dist_apply)."""
        left = self._room.kept
        logits, ids = left["logit"], left["id"].copy()
        p = np.exp(logits - logits.max())
        run = p.astype(np.float64).cumsum()
        chosen = min(int(run.searchsorted(run[-1] * self.given.draws[index])), len(ids) - 1)
        return Drawn(int(ids[chosen]), ids, (p / run[-1]).astype(np.float32), True)

    def _is_cut_off(self, index: int, drawn: Drawn, *, is_among_known: bool, has_others: bool) -> bool:
        """Return whether no token outside the candidates can be left."""
        if has_others and (drawn.p[drawn.ids == _OTHER] > 0).any():
            return False
        num_known = self.num_known[index]
        if is_among_known or num_known == self.given.num_vocab:
            return True
        # where the last candidate is left, others that are as probable may be too
        return not (drawn.p[drawn.ids == self.ids[index, num_known - 1]] > 0).any()

    def p_final(self, index: int, drawn: Drawn) -> npt.NDArray[np.float32]:
        """Return the probabilities of a step's candidates in their order, 0 for those that were cut."""
        found = dict(zip(drawn.ids.tolist(), drawn.p.tolist(), strict=True))
        return np.array([found.get(token, 0) if token >= 0 else 0 for token in self.ids[index].tolist()], np.float32)


def _num_remembered(sampling: Sampling) -> int:
    """Return how many tokens before a step its chain may look at, at least 1."""
    if "penalties" not in stages_of(sampling):
        return 1
    return sampling.penalty_last_n if sampling.penalty_last_n > 0 else 1 << 30


def _depends_on_others(sampling: Sampling) -> bool:
    """Return whether the chain needs more of the other tokens than their probability, or may raise one of them."""
    stages = chain_of(sampling)
    before_top_k = stages[: stages.index("top_k")] if "top_k" in stages else stages
    reshaped = [
        name for name in before_top_k if name == "penalties" or (name == TEMPERATURE and sampling.temperature != 1)
    ]
    first = before_top_k.index(reshaped[0]) if reshaped else len(before_top_k)
    raises = sampling.repeat_penalty < 1 or sampling.frequency_penalty < 0 or sampling.presence_penalty < 0
    return (
        bool({"top_n_sigma", "typical_p"} & set(before_top_k))
        or "top_p" in before_top_k[first:]
        or ("penalties" in stages and raises)
    )


def resampled(steps: Steps, sampling: Sampling, shown: int | None = None) -> Resampled:
    """Sample all steps again."""
    ids, is_exact = list[int](), list[bool]()
    num_kept, p_final = 0, b""
    for index, drawn in enumerate(steps.drawn(sampling)):
        ids.append(drawn.id)
        is_exact.append(drawn.is_exact)
        if index == shown and len(drawn.ids):
            num_kept, p_final = int((drawn.p > 0).sum()), steps.p_final(index, drawn).tobytes()
    return Resampled(ids, is_exact, num_kept, p_final)


def flips(request: FindFlips) -> Flips:
    """Find the nearest value of each parameter, upwards and downwards, at which the first step draws another token."""
    steps, now = Steps(request.steps), request.sampling
    own = request.steps.ids[request.steps.first]

    def token_at(name: str, value: float) -> int | None:
        changed: dict[str, Any] = {name: round(value) if name == "top_k" else value}
        try:
            drawn = next(steps.drawn(replace(now, **changed)))
        except ConfigError:
            return None
        return drawn.id if drawn.is_exact else None

    if token_at("temperature", now.temperature) != own:
        return Flips([])
    num_kept = int(steps.num_known[0])
    top_k = now.top_k if 0 < now.top_k < num_kept else num_kept
    grids: dict[str, tuple[float, tuple[float, ...]]] = {
        "temperature": (now.temperature, TEMPERATURES),
        "top_p": (now.top_p, SHARES),
        "min_p": (now.min_p, SMALL_SHARES),
        "top_k": (top_k, tuple(range(1, num_kept + 1))),
    }
    found = []
    for name, (value, grid) in grids.items():
        for is_above in (False, True):
            away = (
                [each for each in grid if each > value] if is_above else [each for each in grid[::-1] if each < value]
            )
            if flip := _nearest(name, value, away, own, token_at, is_above=is_above):
                found.append(flip)
    return Flips(found)


def _nearest(
    name: str,
    value: float,
    away: list[float],
    own: int,
    token_at: Callable[[str, float], int | None],
    *,
    is_above: bool,
) -> Flip | None:
    for further in away:
        token = token_at(name, further)
        if token is None:
            return None
        if token != own:
            return _bisected(name, value, further, own, token, token_at, is_above=is_above)
        value = further
    return None


def _bisected(
    name: str,
    same: float,
    other: float,
    own: int,
    token: int,
    token_at: Callable[[str, float], int | None],
    *,
    is_above: bool,
) -> Flip:
    """Narrow the limit down between a value that draws the same token and one that draws another."""
    for _ in range(NUM_BISECTIONS if name != "top_k" else 0):
        middle = (same + other) / 2
        found = token_at(name, middle)
        if found is None or found == own:
            same = middle
        else:
            other, token = middle, found
    return Flip(name, is_above, other, token)


class Kept:
    """Steps of earlier requests by name, as far as there is room; those not asked for longest are dropped first."""

    def __init__(self) -> None:
        self._steps: OrderedDict[str, Steps] = OrderedDict()

    def add(self, name: str, steps: Steps) -> None:
        """Keep steps, unless they alone exceed the room."""
        self._steps[name] = steps
        while sum(one.ids.size for one in self._steps.values()) > MOST_CANDIDATES:
            self._steps.popitem(last=False)

    def find(self, name: str) -> Steps | None:
        """Return the steps of this name, if they are kept."""
        if name in self._steps:
            self._steps.move_to_end(name)
        return self._steps.get(name)


def main(end: socket.socket) -> None:
    """Answer requests until the parent hangs up."""
    kept = Kept()

    def answer(request: Resample | FindFlips) -> Resampled | NotKept | Flips:
        if isinstance(request, FindFlips):
            return flips(request)
        if request.steps is not None:
            kept.add(request.name, Steps(request.steps))
        steps = kept.find(request.name)
        return NotKept() if steps is None else resampled(steps, request.sampling, request.shown)

    serve(end, Resample | FindFlips, answer)
