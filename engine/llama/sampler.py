"""From a row of logits to the next token: bias, llama.cpp's sampler chain, the grammar, and the draw that decided."""

import ctypes
import math
import random
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt
from numpy.random import RandomState  # loaded here, not with the first job

from engine.errors import ConfigError
from engine.llama.candidates import Candidates
from engine.llama.distribution import Distribution, Drawn, Logits, Row
from engine.llama.grammar import Grammar
from engine.llama.kernel import kernel
from engine.llama.library import not_null, quick
from engine.results import RESAMPLED
from engine.specs import Sampling

_apply = quick(llama.llama_sampler_apply, None, ctypes.c_void_p, ctypes.c_void_p)
_accept = quick(llama.llama_sampler_accept, None, ctypes.c_void_p, ctypes.c_int32)

NOTHING_LEFT = "logit_bias leaves no token to choose"
_PRESORTED_MOST = 1024
_DRAWN_AHEAD = 64
Ids = npt.NDArray[np.int32]


class Draws:
    """The uniforms of llama.cpp's `dist`: std::mt19937 and std::uniform_real_distribution<double>, mirrored.

    Two outputs lo, hi of the generator give (lo + hi * 2**32) / 2**64 (libstdc++, std::generate_canonical). numpy
    seeds as C++ does; Python's own generator, put in that state, draws many at once.
    """

    def __init__(self, seed: int) -> None:
        words = RandomState(seed).get_state(legacy=False)["state"]["key"]
        self._generator = random.Random()
        self._generator.setstate((3, (*words.tolist(), len(words)), None))
        self._ahead: list[float] = []

    def next(self) -> float:
        """The next uniform in [0, 1)."""
        if not self._ahead:
            self._ahead = [self._generator.getrandbits(64) / 2**64 for _ in range(_DRAWN_AHEAD)][::-1]
        return self._ahead.pop()


class Sampler:
    """One request's chain: call choose(), then accept().

    needs_rows: tokens alone do not say where it stood after them, as a grammar may have had a token drawn again, XTC
    draws only for some rows, and mirostat keeps an estimate of the surprise; their rows must be sampled again.

    Raises ConfigError for a grammar, bias or stage that llama.cpp refuses.
    """

    def __init__(self, sampling: Sampling, seed: int, vocab: Any, num_vocab: int, n_ctx: int) -> None:
        self._num_vocab = num_vocab
        self._is_mirostat = sampling.mirostat > 0
        self._draws = Draws(seed)
        self._bias_ids, self._bias = _bias(sampling, num_vocab)
        self._only_bans = bool((self._bias == -math.inf).all())
        self._bans: tuple[int, int] = (self._bias_ids.ctypes.data, len(self._bias_ids))
        assert not sampling.json_schema, "a schema is compiled before it comes to a worker"
        self._grammar = Grammar(vocab, sampling.grammar) if sampling.grammar else None
        stages = _stages(sampling, seed, vocab, num_vocab, n_ctx)
        self._chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        for _name, stage in stages:
            llama.llama_sampler_chain_add(self._chain, stage)
        self.needs_rows = bool(sampling.grammar) or self._is_mirostat or any(name == "xtc" for name, _stage in stages)
        self._dist = None if self._is_mirostat else stages[-1][1]
        num_presorted = min(sampling.top_k + len(self._bias_ids), num_vocab)
        self.num_presorted = num_presorted if stages[0][0] == "top_k" and num_presorted <= _PRESORTED_MOST else 0
        self._list_all, self._list_best = kernel().list_all, kernel().list_best
        self._two = Candidates(2)

    def choose(self, row: Row, seen: Distribution, room: Candidates) -> Drawn:
        """Run the chain on a row of logits (vocab,); `room` has as many rows.

        `seen` has found at least `num_presorted` of its best.
        """
        if self.num_presorted:
            self._presorted(row, seen, room)
        else:
            self._all(row, room)
        drawn = self._run(room, 0)
        if self._grammar is None or self._grammar.allows(drawn.token):
            return drawn
        self._all(row, room)
        self._grammar.restrict(room)
        if not np.isfinite(room.kept["logit"].max()):
            raise ConfigError("the grammar leaves no token to choose: it may need an end that logit_bias bans")
        return self._run(room, RESAMPLED)

    def _next_draw(self) -> float:
        return math.nan if self._is_mirostat else self._draws.next()

    def _presorted(self, row: Row, seen: Distribution, room: Candidates) -> None:
        """All that a first stage of top_k can leave: the top_k best beside the biased ids, and these."""
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

    def _run(self, room: Candidates, flags: int) -> Drawn:
        _apply(self._chain, room.pointer)
        return Drawn(room.token, self._next_draw(), flags)

    def accept(self, token: int) -> None:
        """Tell the chain and the grammar the token that was taken."""
        if self._grammar:
            self._grammar.accept(token)
        _accept(self._chain, token)

    def advance(self, tokens: Sequence[int]) -> None:
        """Count `tokens` as generated without their logits: penalties and DRY see them, the generator draws once for
        each. Only where not `needs_rows`."""
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


def _bias(sampling: Sampling, num_vocab: int) -> tuple[Ids, Logits]:
    ids = np.array([token for token, _ in sampling.logit_bias], np.intp)
    if len(ids) and ids.max() >= num_vocab:
        raise ConfigError(f"logit_bias names token {ids.max():,}; this vocabulary ends at {num_vocab - 1:,}")
    return ids.astype(np.int32), np.array([bias for _, bias in sampling.logit_bias], np.float32)


def _stages(sampling: Sampling, seed: int, vocab: Any, num_vocab: int, n_ctx: int) -> list[tuple[str, Any]]:
    """The stages that do something, in order; the last one draws."""
    if sampling.mirostat:
        # llama.cpp runs mirostat on the tempered distribution and nothing else (common/sampling.cpp)
        stages = [("temperature", llama.llama_sampler_init_temp(sampling.temperature))]
        tau, eta = sampling.mirostat_tau, sampling.mirostat_eta
        if sampling.mirostat == 1:
            stages.append(("mirostat", llama.llama_sampler_init_mirostat(num_vocab, seed, tau, eta, 100)))
        else:
            stages.append(("mirostat", llama.llama_sampler_init_mirostat_v2(seed, tau, eta)))
    else:
        made = ((name, _stage(name, sampling, seed, vocab, num_vocab, n_ctx)) for name in sampling.samplers)
        stages = [(name, stage) for name, stage in made if stage is not None]
        stages.append(("dist", llama.llama_sampler_init_dist(seed)))
    return [(name, not_null(stage, name, "llama.cpp refuses these values")) for name, stage in stages]


def _stage(name: str, s: Sampling, seed: int, vocab: Any, num_vocab: int, n_ctx: int) -> Any | None:
    """One stage, or None where its values switch it off."""
    match name:
        case "penalties":
            is_on = s.penalty_last_n and (s.repeat_penalty != 1 or s.frequency_penalty or s.presence_penalty)
            last_n = n_ctx if s.penalty_last_n < 0 else s.penalty_last_n
            penalties = (last_n, s.repeat_penalty, s.frequency_penalty, s.presence_penalty)
            return llama.llama_sampler_init_penalties(num_vocab, *penalties) if is_on else None
        case "dry":
            return _dry(s, vocab, n_ctx) if s.dry_multiplier > 0 and s.dry_penalty_last_n else None
        case "top_n_sigma":
            return llama.llama_sampler_init_top_n_sigma(s.top_n_sigma) if s.top_n_sigma > 0 else None
        case "top_k":
            return llama.llama_sampler_init_top_k(s.top_k) if s.top_k > 0 else None
        case "typical_p":
            return llama.llama_sampler_init_typical(s.typical_p, 1) if s.typical_p < 1 else None
        case "top_p":
            return llama.llama_sampler_init_top_p(s.top_p, 1) if s.top_p < 1 else None
        case "min_p":
            return llama.llama_sampler_init_min_p(s.min_p, 1) if s.min_p > 0 else None
        case "xtc":
            is_on = s.xtc_probability > 0
            return llama.llama_sampler_init_xtc(s.xtc_probability, s.xtc_threshold, 1, seed) if is_on else None
        case _:
            return llama.llama_sampler_init_temp(s.temperature)


def _dry(s: Sampling, vocab: Any, n_ctx: int) -> Any:
    breakers = [breaker.encode() for breaker in s.dry_sequence_breakers]
    array = (ctypes.c_char_p * max(len(breakers), 1))(*breakers)
    last_n = n_ctx if s.dry_penalty_last_n < 0 else s.dry_penalty_last_n
    shape = (s.dry_multiplier, s.dry_base, s.dry_allowed_length, last_n)
    return llama.llama_sampler_init_dry(vocab, *shape, array, len(breakers))
