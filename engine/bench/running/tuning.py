"""Answer to "Best settings?": the winner, its gain over llama.cpp's default, and equally good alternatives."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from engine.bench.analysis.rounds import Rounds
from engine.bench.analysis.wording import looks, times
from engine.bench.planning.candidates import DEFAULT, DEFAULT_LABEL, ENOUGH, METRIC
from engine.bench.planning.plan import Cell, Plan
from engine.bench.running.effects import Effects, effects
from engine.bench.running.halving import Halving, final_round, median_of, short_samples
from engine.samples import METRICS_BY_NAME, Samples, no_samples
from engine.stats import Verdict, compare_many
from engine.units import counted, percent, quantity

FLAT = 0.02
"""Settings whose figure is within this share of the best count as equally good."""

_MEMORY = "pss_bytes"
_IN_WORDS = {
    "tokens_per_s": "in total",
    "decode_per_s": "for one stream",
    "ttft_s": "to the first token",
}


class Tuning:
    """Search over the `candidates` of a plan with the question "settings"."""

    def __init__(self, plan: Plan, cells: Sequence[Cell]) -> None:
        self._plan, self._cells = plan, cells
        self._metric = METRIC[plan.goal]

    def strategy(self, samples: Samples | None = None, *, clock: Callable[[], float] = time.monotonic) -> Halving:
        """Return the strategy for a Runner; `samples`: those of a run that is continued."""
        return Halving(self._plan, self._cells, no_samples() if samples is None else samples, clock=clock)

    def outcome(self, samples: Samples) -> dict[str, Any]:
        """Return the outcome as plain values, from the samples so far; it is preliminary before the final.

        winner: number of the recommended configuration: the leader where it is proven faster, where the goal is memory
        or where the default has no figure, else the default. pool: its PoolSpec. leader: the best one, proven or not.
        flat: configurations within FLAT of the best figure, least memory first. gain: winner over default (value, low,
        high), None where they are the same configuration or share no round. word, more_rounds: the verdict on the
        leader. num_tried of num_cells. sentence. Without any sample only `sentence`.
        """
        judged, is_final = self._judged(samples)
        found = effects(judged, self._metric)
        if not found.values:
            return {"sentence": "No settings measured yet."}
        flat = self._flat(judged, found)
        leader = self._leader(judged, found)
        verdict = self._verdict(judged, leader)
        is_beaten = verdict.word == "faster" or self._plan.goal == "memory" or DEFAULT not in found.values
        winner = leader if is_beaten else DEFAULT
        answer = _Answer(winner, leader, verdict, flat, len(np.unique(samples["cell"])), is_final)
        return {
            "goal": self._plan.goal,
            "metric": self._metric,
            "default": DEFAULT,
            "winner": winner,
            "leader": leader,
            "pool": self._cells[winner].pool.to_dict(),
            "flat": flat,
            "gain": _plain(verdict) if winner != DEFAULT and verdict.num_rounds else None,
            "word": verdict.word,
            "more_rounds": verdict.more_rounds,
            "num_tried": answer.num_tried,
            "num_cells": len(self._cells),
            "sentence": self._sentence(judged, answer),
        }

    def _verdict(self, judged: Samples, leader: int) -> Verdict:
        """Return the verdict on the leader against the default, corrected for all configurations it was chosen from."""
        rounds = Rounds.of(judged).by_cell(self._metric)
        theirs = rounds.get(DEFAULT, {})
        rivals = list(dict.fromkeys([leader, *rounds]))
        pairs = [(rounds.get(cell, {}), theirs) for cell in rivals if cell != DEFAULT or leader == DEFAULT]
        return compare_many(pairs, is_more_better=METRICS_BY_NAME[self._metric].is_more_better)[0]

    def _judged(self, samples: Samples) -> tuple[Samples, bool]:
        """Return the final's samples and True; before it, the last of each configuration and round, and False."""
        final = final_round(samples)
        if final is None:
            return short_samples(samples, int(samples["round"].max(initial=0)) + 1), False
        return samples[samples["round"] >= final], True

    def _leader(self, judged: Samples, found: Effects) -> int:
        ranked = found.ranked()
        if self._plan.goal != "memory":
            return ranked[0]
        enough = [cell for cell in ranked if found.behind(cell) <= 1 - ENOUGH]
        return min(enough, key=lambda cell: median_of(judged, cell, _MEMORY))

    def _flat(self, judged: Samples, found: Effects) -> list[int]:
        near = [cell for cell in found.ranked() if found.behind(cell) <= FLAT]
        return sorted(near, key=lambda cell: median_of(judged, cell, _MEMORY))

    # wording

    def _sentence(self, judged: Samples, answer: "_Answer") -> str:
        said = [self._finding(judged, answer)]
        lightest = answer.flat[0]
        if lightest != answer.winner == answer.leader:
            memory = " instead of ".join(self._figure(judged, cell, _MEMORY) for cell in (lightest, answer.winner))
            said.append(f"{self._label(lightest)} is as good (within {percent(FLAT)}) and uses less memory: {memory}.")
        said.append(f"Tried: {answer.num_tried:,} of {counted(len(self._cells), 'setting')}.")
        return ("" if answer.is_final else "So far: ") + " ".join(said)

    def _finding(self, judged: Samples, answer: "_Answer") -> str:
        label, ratio = self._label(answer.leader), answer.verdict.ratio
        figure = f"{self._figure(judged, answer.leader, self._metric)} {_IN_WORDS[self._metric]}"
        if answer.winner == DEFAULT == answer.leader:
            return f"Nothing tried is better than {DEFAULT_LABEL}: keep it, at {figure}."
        if self._plan.goal == "memory":
            memory = [self._figure(judged, cell, _MEMORY) for cell in (answer.leader, DEFAULT)]
            enough = f"{percent(ENOUGH)} of the best or more"
            return f"{label}: {memory[0]} for {figure}, {enough}; the default uses {memory[1]}."
        gain = f"{times(ratio)} that of {DEFAULT_LABEL}"
        if answer.winner == DEFAULT and answer.verdict.word == "not enough data":
            more = counted(answer.verdict.more_rounds, "more round")
            estimate = looks(label, DEFAULT_LABEL, ratio, METRICS_BY_NAME[self._metric])
            return f"{estimate}; {more} would confirm it. Until then keep the default."
        if answer.winner == DEFAULT:
            return f"Nothing tried is better than {DEFAULT_LABEL} by more than {percent(FLAT)}: keep it."
        return f"{label}: {figure}, {gain}." if ratio.num else f"{label}: {figure}; the default could not be measured."

    def _label(self, cell: int) -> str:
        return self._cells[cell].label

    @staticmethod
    def _figure(judged: Samples, cell: int, metric: str) -> str:
        return quantity(median_of(judged, cell, metric), METRICS_BY_NAME[metric].unit)


class _Answer(NamedTuple):
    """Findings that the sentence is built from."""

    winner: int
    leader: int
    verdict: Verdict
    flat: list[int]
    num_tried: int
    is_final: bool


def _plain(verdict: Verdict) -> dict[str, float | None]:
    """Return the ratio for JSON, which has no NaN."""
    bounds = zip(("value", "low", "high"), verdict.ratio[:3], strict=True)
    return {name: bound if math.isfinite(bound) else None for name, bound in bounds}
