"""Sampler: draws the next token from a row of logits, by logit bias, llama.cpp's sampler chain and the grammar."""

import ctypes
import math
import random
import weakref
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt
from numpy.random import RandomState  # imported at start-up, not with the first job

from engine.errors import ConfigError
from engine.llama.candidates import Candidates
from engine.llama.distribution import Distribution, Drawn, Logits, Row
from engine.llama.grammar_sampler import Grammar
from engine.llama.kernel import kernel
from engine.llama.library import not_null, quick
from engine.llama.model import Model
from engine.specs import Sampling
from engine.stages import BEYOND_CANDIDATES, BIAS, TEMPERATURE, chain_of, stages_of
from engine.step_parts import RESAMPLED

_apply = quick(llama.llama_sampler_apply, None, ctypes.c_void_p, ctypes.c_void_p)
_accept = quick(llama.llama_sampler_accept, None, ctypes.c_void_p, ctypes.c_int32)

NOTHING_LEFT = "logit_bias leaves no token to choose"
_PRESORTED_MOST = 1024
_DRAWN_AHEAD = 64
_MOST_COMPARED, _FEWEST_BREAKER_BYTES = 1 << 21, 8
"""Every byte of DRY's sequence breakers is compared with each token of the vocabulary, in some 0.2 us per byte and
token, while all streams of the worker wait."""
_SMALLEST_TEMPERATURE = 1e-30
"""As greedy as 0; logits divided by anything smaller overflow to infinity in float32."""
Ids = npt.NDArray[np.int32]


class Draws:
    """Uniform numbers of llama.cpp's `dist`: mirrors std::mt19937 and std::uniform_real_distribution<double>.

    Two outputs lo, hi of the generator give (lo + hi * 2**32) / 2**64 (libstdc++, std::generate_canonical). numpy
    seeds as C++ does; Python's own generator, set to that state, draws many numbers at once.
    """

    def __init__(self, seed: int) -> None:
        words = RandomState(seed).get_state(legacy=False)["state"]["key"]
        self._generator = random.Random()
        self._generator.setstate((3, (*words.tolist(), len(words)), None))
        self._ahead: list[float] = []

    def next(self) -> float:
        """Return the next uniform number in [0, 1)."""
        if not self._ahead:
            self._ahead = [self._generator.getrandbits(64) / 2**64 for _ in range(_DRAWN_AHEAD)][::-1]
        return self._ahead.pop()


class Sampler:
    """Sampler chain of one request: call choose(), then accept().

    needs_rows: tokens alone do not determine the sampler's state after them, because a grammar may have caused a
    second draw, XTC draws only for some rows, and mirostat maintains an estimate of the surprise; to restore the state,
    their rows must be sampled again.

    Raises ConfigError for a grammar, bias or stage that llama.cpp rejects.
    """

    def __init__(self, sampling: Sampling, seed: int, model: Model, n_ctx: int) -> None:
        self._num_vocab = num_vocab = model.num_vocab
        self._is_mirostat = sampling.mirostat > 0
        self._draws = Draws(seed)
        self._bias_ids, self._bias = _bias(sampling, num_vocab)
        self._only_bans = bool((self._bias == -math.inf).all())
        self._bans: tuple[int, int] = (self._bias_ids.ctypes.data, len(self._bias_ids))
        self._banned = np.ascontiguousarray(self._bias_ids[self._bias == -math.inf])
        self.stages = stages_of(sampling)
        assert not sampling.json_schema, "a schema is compiled before it comes to a worker"
        self._grammar = Grammar(model.vocab, sampling.grammar) if sampling.grammar else None
        stages = _stages(sampling, seed, model, n_ctx)
        self._chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        for _name, stage in stages:
            llama.llama_sampler_chain_add(self._chain, stage)
        self.needs_rows = bool(sampling.grammar) or self._is_mirostat or any(name == "xtc" for name, _stage in stages)
        self._dist = None if self._is_mirostat else stages[-1][1]
        forbidding = {"top_n_sigma"} | ({TEMPERATURE} if sampling.temperature <= 0 else set())
        self._each = [(stage, name in forbidding) for name, stage in stages]
        num_presorted = min(sampling.top_k + len(self._bias_ids), num_vocab)
        self.num_presorted = num_presorted if stages[0][0] == "top_k" and num_presorted <= _PRESORTED_MOST else 0
        self._list_all, self._list_best = kernel().list_all, kernel().list_best
        self._two = Candidates(2)

    def choose(self, row: Row, seen: Distribution, room: Candidates, *, followed: int = 0) -> Drawn:
        """Run the chain on a row of logits (vocab,) and draw a token; `room` has as many rows as the vocabulary.

        `seen` has found at least the `num_presorted` best tokens of the row. followed: the number of most probable
        tokens of which `seen` records which of `stages` cut them, and which of them the grammar forbids; 0 records
        nothing of the stages. Raises ConfigError if logit_bias or the grammar leaves no token.
        """
        if self.num_presorted:
            self._presorted(row, seen, room)
        else:
            self._all(row, room)
        drawn = self._draw(row, seen, room, followed)
        if self._grammar is None:
            return drawn
        if not self._grammar.allows(drawn.token):
            self._all(row, room)
            self._grammar.restrict(room)
            if not np.isfinite(room.kept["logit"].max()):
                raise ConfigError(
                    "the grammar leaves no token to choose: logit_bias may ban the end token that it needs"
                )
            drawn = self._draw(row, seen, room, followed, RESAMPLED)
        if followed:
            seen.mark_forbidden(self._grammar.forbids(seen.top["id"][:followed]))
        return drawn

    def _draw(self, row: Row, seen: Distribution, room: Candidates, followed: int, flags: int = 0) -> Drawn:
        """Run the chain on the candidates listed in `room`."""
        if followed:
            return self._run_followed(row, seen, room, followed, flags)
        _apply(self._chain, room.pointer)
        return Drawn(room.token, self._next_draw(), flags)

    def _run_followed(self, row: Row, seen: Distribution, room: Candidates, followed: int, flags: int) -> Drawn:
        """Run the chain one stage at a time, recording what each leaves."""
        seen.begin_stages(followed)
        if BIAS in self.stages:
            seen.mark_banned(row, self._banned.ctypes.data, len(self._banned))
        if flags == RESAMPLED:
            seen.mark_stage(row, room, may_forbid=True)
        elif self._grammar is not None:
            seen.mark_banned(row, 0, 0)
        for stage, may_forbid in self._each:
            _apply(stage, room.pointer)
            if stage is not self._dist:
                seen.mark_stage(row, room, may_forbid=may_forbid)
        return Drawn(room.token, self._next_draw(), flags)

    def _next_draw(self) -> float:
        return math.nan if self._is_mirostat else self._draws.next()

    def _presorted(self, row: Row, seen: Distribution, room: Candidates) -> None:
        """List all tokens that can survive a first stage of top_k: the best unbiased tokens and the biased ones."""
        if self._only_bans:
            if not self._list_best(seen.address, self.num_presorted, *self._bans, room.address):
                raise ConfigError(NOTHING_LEFT)
            return
        best = seen.top["id"][: self.num_presorted]
        others = best[~(best[:, None] == self._bias_ids).any(axis=1)]
        ids = np.concatenate((others, self._bias_ids))
        self._add_bias(room.fill(ids, row.logits[ids]), slice(len(others), None))

    def _all(self, row: Row, room: Candidates) -> None:
        self._list_all(row.address, self._num_vocab, room.address)
        if len(self._bias_ids):
            self._add_bias(room.kept["logit"], self._bias_ids)

    def _add_bias(self, logits: Logits, where: slice | Ids) -> None:
        logits[where] += self._bias
        if not np.isfinite(logits.max()):
            raise ConfigError(NOTHING_LEFT)

    def accept(self, token: int) -> None:
        """Advance the chain and the grammar by the chosen token."""
        if self._grammar:
            self._grammar.accept(token)
        _accept(self._chain, token)

    def advance(self, tokens: Sequence[int]) -> None:
        """Advance as if `tokens` had been generated, without their logits: penalties and DRY see them, and the
        generator draws once for each. Only valid if not `needs_rows`."""
        for token in tokens:
            self.accept(token)
            if self._dist is not None:
                self._two.take(2)[:] = 0
                llama.llama_sampler_apply(self._dist, self._two.pointer)
            self._draws.next()

    def close(self) -> None:
        """Free chain and grammar."""
        llama.llama_sampler_free(self._chain)
        if self._grammar:
            self._grammar.close()


class _Size(NamedTuple):
    """What most stages need of a model."""

    num_vocab: int


def chain_without_draw(sampling: Sampling, num_vocab: int, n_ctx: int) -> Any:
    """Return llama.cpp's chain of these parameters without its last stage, the draw; free it after use.

    Raises ConfigError for a stage that needs a model's vocabulary or draws by itself.
    """
    chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    for name in chain_of(sampling):
        if name in BEYOND_CANDIDATES:
            llama.llama_sampler_free(chain)
            raise ConfigError(f"{name} needs more than the candidates of a step")
        llama.llama_sampler_chain_add(
            chain, not_null(_stage(name, sampling, 0, _Size(num_vocab), n_ctx), name, "refused")
        )
    return chain


def _bias(sampling: Sampling, num_vocab: int) -> tuple[Ids, Logits]:
    ids = np.array([token for token, _ in sampling.logit_bias], np.intp)
    if len(ids) and ids.max() >= num_vocab:
        raise ConfigError(f"logit_bias names token {ids.max():,}; this vocabulary ends at {num_vocab - 1:,}")
    return ids.astype(np.int32), np.array([bias for _, bias in sampling.logit_bias], np.float32)


def _stages(sampling: Sampling, seed: int, model: Model, n_ctx: int) -> list[tuple[str, Any]]:
    """Create the stages that are enabled, in order; the last one draws."""
    if sampling.mirostat:
        # llama.cpp runs mirostat on the distribution after temperature, without other stages (common/sampling.cpp)
        stages = [("temperature", llama.llama_sampler_init_temp(_temperature(sampling.temperature)))]
        tau, eta = sampling.mirostat_tau, sampling.mirostat_eta
        if sampling.mirostat == 1:
            stages.append(("mirostat", llama.llama_sampler_init_mirostat(model.num_vocab, seed, tau, eta, 100)))
        else:
            stages.append(("mirostat", llama.llama_sampler_init_mirostat_v2(seed, tau, eta)))
    else:
        stages = [(name, _stage(name, sampling, seed, model, n_ctx)) for name in chain_of(sampling)]
        stages.append(("dist", llama.llama_sampler_init_dist(seed)))
    return [(name, not_null(stage, name, "llama.cpp rejects these values")) for name, stage in stages]


def _stage(name: str, s: Sampling, seed: int, model: Model | _Size, n_ctx: int) -> Any:
    """Create one stage of the chain."""
    match name:
        case "penalties":
            penalties = (_last_n(s.penalty_last_n, n_ctx), s.repeat_penalty, s.frequency_penalty, s.presence_penalty)
            return llama.llama_sampler_init_penalties(model.num_vocab, *penalties)
        case "dry":
            assert isinstance(model, Model)
            return _dry(s, model, n_ctx)
        case "top_n_sigma":
            return llama.llama_sampler_init_top_n_sigma(s.top_n_sigma)
        case "top_k":
            return llama.llama_sampler_init_top_k(s.top_k)
        case "typical_p":
            return llama.llama_sampler_init_typical(s.typical_p, 1)
        case "top_p":
            return llama.llama_sampler_init_top_p(s.top_p, 1)
        case "min_p":
            return llama.llama_sampler_init_min_p(s.min_p, 1)
        case "xtc":
            return llama.llama_sampler_init_xtc(s.xtc_probability, s.xtc_threshold, 1, seed)
        case _:
            return llama.llama_sampler_init_temp(_temperature(s.temperature))


def _last_n(asked: int, n_ctx: int) -> int:
    """Return how many tokens back a stage looks, at most the context length, as each takes memory."""
    return n_ctx if asked < 0 else min(asked, n_ctx)


def _temperature(asked: float) -> float:
    return max(asked, _SMALLEST_TEMPERATURE) if asked > 0 else asked


def _dry(s: Sampling, model: Model, n_ctx: int) -> Any:
    breakers = tuple(breaker.encode() for breaker in s.dry_sequence_breakers)
    num_bytes, most = sum(map(len, breakers)), max(_MOST_COMPARED // model.num_vocab, _FEWEST_BREAKER_BYTES)
    if num_bytes > most:
        raise ConfigError(
            f"dry_sequence_breakers: {num_bytes} bytes in total; at most {most} are allowed with a vocabulary of "
            f"{model.num_vocab:,} tokens: remove some or shorten them"
        )
    last_n = _last_n(s.dry_penalty_last_n, n_ctx)
    shape = (s.dry_multiplier, s.dry_base, s.dry_allowed_length, last_n)
    return llama.llama_sampler_clone(_prepared_dry(model, breakers, *shape).pointer)


class _PreparedDry:
    """DRY sampler that has looked up its sequence breakers in the vocabulary; freed with this object."""

    def __init__(self, model: Model, breakers: tuple[bytes, ...], shape: tuple[float, float, int, int]) -> None:
        array = (ctypes.c_char_p * max(len(breakers), 1))(*breakers)
        made = llama.llama_sampler_init_dry(model.vocab, *shape, array, len(breakers))
        self.pointer = not_null(made, "dry", "llama.cpp rejects these values")
        weakref.finalize(self, llama.llama_sampler_free, made)


@lru_cache(maxsize=16)
def _prepared_dry(model: Model, breakers: tuple[bytes, ...], *shape: Any) -> _PreparedDry:
    return _PreparedDry(model, breakers, shape)
