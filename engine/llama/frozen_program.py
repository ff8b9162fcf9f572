"""Child program of a Resampler: runs kept candidates through llama.cpp's sampler chain."""

import math
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from engine.errors import ConfigError
from engine.llama.candidates import Candidates
from engine.llama.frozen import FindFlips, Flip, Flips, FrozenSteps, Resample, Resampled
from engine.llama.sampler import chain_without_draw
from engine.process.serving import serve
from engine.specs import Sampling
from engine.stages import TEMPERATURE, chain_of, stages_of

NUM_BISECTIONS = 24
TEMPERATURES = (*np.geomspace(0.02, 10, 48).tolist(),)
SHARES = tuple(np.linspace(0.02, 0.98, 49).tolist())
SMALL_SHARES = tuple(np.geomspace(1e-4, 0.98, 49).tolist())
_OTHER = -1
"""Id of a token outside the candidates: all of them together have the probability that is left, and none more than the
last candidate."""


class Drawn(NamedTuple):
    """Outcome of one step; p is 0 for candidates that were cut, in their order."""

    id: int
    num_kept: int
    p: npt.NDArray[np.float32]
    is_exact: bool


class Steps:
    """Candidates of steps, as arrays."""

    def __init__(self, given: FrozenSteps) -> None:
        num = len(given.draws)
        self.given = given
        self.ids = np.frombuffer(given.top_ids, "<i4").reshape(num, given.k)
        self.logits = np.frombuffer(given.logits, "<f4").reshape(num, given.k)
        self.num_known = (self.ids >= 0).sum(axis=1)
        self._room = Candidates(given.num_vocab + given.k)
        self._place = np.full(given.num_vocab + 1, given.k, np.int64)

    def drawn(self, sampling: Sampling) -> Iterator[Drawn]:
        """Yield the outcome of each step under these parameters."""
        given, bias = self.given, dict(sampling.logit_bias)
        chain = chain_without_draw(sampling, given.num_vocab, len(given.ids))
        stages = chain_of(sampling)
        is_sorted = stages[:1] == ("top_k",)
        is_guessed = _depends_on_others(sampling)
        try:
            for token in given.ids[: given.first][-_num_remembered(sampling) :]:
                llama.llama_sampler_accept(chain, token)
            for index, token in enumerate(given.ids[given.first :]):
                num_known = int(self.num_known[index])
                is_among_known = "top_k" in stages and sampling.top_k <= num_known
                is_complete = self._fill(
                    index, bias, is_sorted=is_sorted, has_others=not (is_sorted and is_among_known)
                )
                if not len(self._room.kept):
                    raise ConfigError("logit_bias leaves no candidate to choose")
                llama.llama_sampler_apply(chain, self._room.pointer)
                drawn = self._draw(index, is_exact=is_complete and not is_guessed)
                # where the last candidate is left, others that are as probable may be too
                is_cut_off = is_among_known or num_known == given.num_vocab or not drawn.p[num_known - 1]
                yield drawn._replace(is_exact=drawn.is_exact and is_cut_off)
                llama.llama_sampler_accept(chain, token)
        finally:
            llama.llama_sampler_free(chain)

    def _fill(self, index: int, bias: dict[int, float], *, is_sorted: bool, has_others: bool) -> bool:
        """List the candidates, then as many others as can be; return whether every biased token is a candidate."""
        num, others = int(self.num_known[index]), self.given.others[index]
        ids, logits = self.ids[index, :num], self.logits[index, :num].copy()
        is_complete = True
        for token, value in bias.items():
            found = ids == token
            logits[found] += value
            is_complete &= bool(found.any()) or value == -math.inf
        order = np.arange(num) if is_sorted else np.argsort(ids, kind="stable")
        ids, logits = ids[order], logits[order]
        p_last = math.exp(min(float(self.logits[index, num - 1]) - self._normaliser(index, num), 0))
        num_others = self.given.num_vocab - num if has_others else 0
        if num_others and p_last > 0:
            num_others = min(num_others, max(1, math.ceil(others / p_last)))
            least = float(self.logits[index, num - 1]) + math.log(max(others / p_last / num_others, 1e-30))
            ids = np.concatenate([ids, np.full(num_others, _OTHER, np.int32)])
            logits = np.concatenate([logits, np.full(num_others, least, np.float32)])
        is_best_first = is_sorted and all(value == -math.inf for value in bias.values())
        self._room.fill(ids[logits > -math.inf], logits[logits > -math.inf], is_sorted=is_best_first)
        return is_complete

    def _normaliser(self, index: int, num: int) -> float:
        """Return the log of the summed exponentials of all logits."""
        logits = self.logits[index, :num].astype(np.float64)
        highest = float(logits.max())
        return highest + math.log(np.exp(logits - highest).sum() / max(1 - self.given.others[index], 1e-30))

    def _draw(self, index: int, *, is_exact: bool) -> Drawn:
        """Draw as llama.cpp's `dist` does (llama_sampler_dist_apply)."""
        left = self._room.kept
        p = np.exp(left["logit"] - left["logit"].max())
        run = np.cumsum(p, dtype=np.float64)
        chosen = int(np.searchsorted(run, run[-1] * self.given.draws[index]))
        ids, num = left["id"], int(self.num_known[index])
        self._place[self.ids[index, :num]] = np.arange(num)
        final = np.zeros(self.given.k + 1, np.float32)
        final[self._place[ids]] = p / run[-1]  # the others share the last place, as -1 is the last index
        self._place[self.ids[index, :num]] = self.given.k
        is_exact &= not (p[ids == _OTHER] > 0).any()
        return Drawn(int(ids[min(chosen, len(ids) - 1)]), int((p > 0).sum()), final[:-1], is_exact)


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


def resampled(request: Resample) -> Resampled:
    """Sample all steps again."""
    found = list(Steps(request.steps).drawn(request.sampling))
    p_final = b"".join(one.p.tobytes() for one in found)
    return Resampled(
        [one.id for one in found], [one.num_kept for one in found], p_final, [one.is_exact for one in found]
    )


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


def main(end: socket.socket) -> None:
    """Answer requests until the parent hangs up."""
    serve(end, Resample | FindFlips, _answer)


def _answer(request: Resample | FindFlips) -> Any:
    return resampled(request) if isinstance(request, Resample) else flips(request)
