"""Answer to "Best settings?": the winner, its gain over llama.cpp's default, and equally good alternatives."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from engine.bench.analysis.disturbance import is_mostly_disturbed, without_rounds
from engine.bench.analysis.rounds import Rounds
from engine.bench.analysis.wording import looks, times
from engine.bench.planning.candidates import DEFAULT, DEFAULT_LABEL, ENOUGH, METRIC
from engine.bench.planning.plan import Cell, Plan
from engine.bench.planning.search_time import FINAL_SHARE, whole_budget_s
from engine.bench.running.effects import Effects, effects
from engine.bench.running.halving import OVERHEAD, Halving, final_round, median_of, short_samples
from engine.samples import METRICS_BY_NAME, Samples, no_samples
from engine.stats import FIRST_LOOK, Verdict, compare_many
from engine.stats.evidence import ByRound
from engine.units import counted, duration, percent, quantity

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

    def outcome(self, samples: Samples, *, out: Collection[int] = (), is_over: bool = True) -> dict[str, Any]:
        """Return the outcome as plain values, from the samples so far; it is preliminary before the final.

        out: configurations that failed or were refused; is_over: False for a search that was stopped.

        winner: number of the recommended configuration: the leader where it is proven faster, where the goal is memory
        or where the default has no figure, else the default. pool: its PoolSpec. leader: the best one, proven or not.
        flat: configurations within FLAT of the best figure, least memory first. gain: winner over default (value, low,
        high), None where they are the same configuration or share no round. word, more_rounds: the verdict on the
        leader. budget_s: time in which a search would probably give a verdict; None where this one gave one, or where
        time is not what it lacks. num_tried of num_cells. sentence. Without any sample only `sentence`.
        """
        judged, is_final = self._judged(samples)
        found = effects(judged, self._metric)
        if not found.values:
            return {"sentence": "No settings measured yet."}
        leader = self._leader(judged, found)
        rounds = Rounds.of(judged).by_cell(self._metric)
        answer = _Answer(
            leader=leader,
            verdict=self._verdict(rounds, leader),
            flat=self._flat(judged, found),
            num_tried=len(np.unique(samples["cell"])),
            num_able=sum(not cell.refusal and cell.number not in out for cell in self._cells),
            num_common=_num_common(rounds, leader),
            has_default=DEFAULT in found.values,
            is_over=is_over and is_final,
            is_disturbed=is_mostly_disturbed(samples),
        )
        winner = self._winner(answer)
        verdict, budget_s = answer.verdict, self._budget_s(judged, answer)
        return {
            "goal": self._plan.goal,
            "metric": self._metric,
            "default": DEFAULT,
            "winner": winner,
            "leader": leader,
            "pool": self._cells[winner].pool.to_dict(),
            "flat": answer.flat,
            "gain": _plain(verdict) if winner != DEFAULT and verdict.num_rounds else None,
            "word": "not enough data" if answer.is_short else verdict.word,
            "more_rounds": (without_rounds(verdict) if answer.is_disturbed else verdict).more_rounds,
            "budget_s": budget_s if math.isfinite(budget_s) else None,
            "num_tried": answer.num_tried,
            "num_cells": len(self._cells),
            "sentence": self._sentence(judged, answer, budget_s),
        }

    def _winner(self, answer: "_Answer") -> int:
        is_lighter = self._plan.goal == "memory" and not answer.is_short
        is_beaten = answer.verdict.word == "faster" or is_lighter or not answer.has_default
        return answer.leader if is_beaten else DEFAULT

    def _budget_s(self, judged: Samples, answer: "_Answer") -> float:
        """Return the time in which a search would probably give a verdict; NaN where it is not time that is lacking.

        A search that ended too soon is given at least twice its time, as loading took it up. inf beyond the longest
        time that a search may have.
        """
        is_open = answer.leader != DEFAULT and answer.verdict.word == "not enough data" and not answer.is_disturbed
        if not answer.is_over or not (answer.is_short or is_open):
            return math.nan
        seconds = [float(judged["duration_s"][judged["cell"] == cell].mean()) for cell in np.unique(judged["cell"])]
        round_s = OVERHEAD * sum(seconds) * (2 if len(seconds) == 1 else 1)
        num_rounds = FIRST_LOOK if answer.is_short else answer.num_common + answer.verdict.more_rounds
        least = (2 if answer.is_short else 1) * self._plan.budget_s
        return whole_budget_s(max(least, num_rounds * round_s / FINAL_SHARE))

    def _verdict(self, rounds: Mapping[int, ByRound], leader: int) -> Verdict:
        """Return the verdict on the leader against the default, corrected for all configurations it was chosen from."""
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

    def _sentence(self, judged: Samples, answer: "_Answer", budget_s: float) -> str:
        if answer.is_short:
            return self._too_short(judged, answer, budget_s)
        said = [self._finding(judged, answer, budget_s)]
        lightest, winner = answer.flat[0], self._winner(answer)
        if lightest != winner == answer.leader:
            memory = " instead of ".join(self._figure(judged, cell, _MEMORY) for cell in (lightest, winner))
            said.append(f"{self._label(lightest)} is as good (within {percent(FLAT)}) and uses less memory: {memory}.")
        said.append(f"Tried: {self._tried(answer)}.")
        return ("" if answer.is_over else "So far: ") + " ".join(said)

    def _too_short(self, judged: Samples, answer: "_Answer", budget_s: float) -> str:
        """Return what was measured, and the time that a verdict would take."""
        rounds = f", {answer.num_common} of {FIRST_LOOK} rounds of the final measured" if answer.num_common else ""
        quiet = " on a quiet machine" if answer.is_disturbed else ""
        given = (
            f"Give it {duration(budget_s)}{quiet}"
            if math.isfinite(budget_s)
            else "Even the longest time allowed would be too short"
        )
        seen = f"{DEFAULT_LABEL}: {self._speed(judged, DEFAULT)}"
        if answer.leader != DEFAULT:
            seen = f"{self._estimate(answer)}; until it is confirmed keep the default"
        return f"The time was too short for a verdict: {self._tried(answer)} tried{rounds}. {given}. {seen}."

    def _finding(self, judged: Samples, answer: "_Answer", budget_s: float) -> str:
        label, ratio, winner = self._label(answer.leader), answer.verdict.ratio, self._winner(answer)
        figure = self._speed(judged, answer.leader)
        if winner == DEFAULT == answer.leader:
            return f"{self._why_default(answer)}: keep it, at {figure}."
        if self._plan.goal == "memory":
            memory = [self._figure(judged, cell, _MEMORY) for cell in (answer.leader, DEFAULT)]
            enough = f"{percent(ENOUGH)} of the best or more"
            return f"{label}: {memory[0]} for {figure}, {enough}; the default uses {memory[1]}."
        if winner == DEFAULT and answer.verdict.word == "not enough data":
            return f"{self._estimate(answer)}{_until(answer, budget_s)}"
        if winner == DEFAULT:
            return f"Nothing tried is better than {DEFAULT_LABEL} by more than {percent(FLAT)}: keep it."
        gain = f"{times(ratio)} that of {DEFAULT_LABEL}"
        return f"{label}: {figure}, {gain}." if ratio.num else f"{label}: {figure}; the default could not be measured."

    def _why_default(self, answer: "_Answer") -> str:
        """Return why the default is kept, as a clause."""
        if answer.num_able == 1:
            return f"No other setting can run beside {DEFAULT_LABEL}"
        if answer.num_tried == 1:
            return f"Only {DEFAULT_LABEL} was measured"
        if answer.is_over and not answer.num_common:
            return f"Nothing tried comes near {DEFAULT_LABEL} in short samples"
        return f"Nothing tried is better than {DEFAULT_LABEL}"

    def _estimate(self, answer: "_Answer") -> str:
        metric = METRICS_BY_NAME[self._metric]
        return looks(self._label(answer.leader), DEFAULT_LABEL, answer.verdict.ratio, metric)

    def _tried(self, answer: "_Answer") -> str:
        return f"{answer.num_tried:,} of {counted(len(self._cells), 'setting')}"

    def _speed(self, judged: Samples, cell: int) -> str:
        return f"{self._figure(judged, cell, self._metric)} {_IN_WORDS[self._metric]}"

    def _label(self, cell: int) -> str:
        return self._cells[cell].label

    @staticmethod
    def _figure(judged: Samples, cell: int, metric: str) -> str:
        return quantity(median_of(judged, cell, metric), METRICS_BY_NAME[metric].unit)


class _Answer(NamedTuple):
    """Findings that the sentence is built from.

    num_able: configurations that can run; num_common: rounds of the leader, or of the best measured rival of the
    default, that the default has too; is_over: the search came to its end.
    """

    leader: int
    verdict: Verdict
    flat: list[int]
    num_tried: int
    num_able: int
    num_common: int
    has_default: bool
    is_over: bool
    is_disturbed: bool

    @property
    def is_short(self) -> bool:
        """True where the search ended with too few rounds of the default and another setting for any verdict.

        Not where all others that were tried had fallen behind before the final.
        """
        is_compared = self.num_common or self.num_tried == 1 or self.leader != DEFAULT
        return (
            self.is_over
            and self.has_default
            and self.num_able > 1
            and bool(is_compared)
            and (self.num_common < FIRST_LOOK)
        )


def _until(answer: _Answer, budget_s: float) -> str:
    """Return what would confirm an estimate, and what to do until then, as the rest of its sentence."""
    if answer.is_disturbed:
        return "; a run on a quiet machine would confirm it. Until then keep the default."
    if math.isfinite(budget_s):
        return f"; a search of {duration(budget_s)} would confirm it. Until then keep the default."
    if answer.is_over:
        return "; no time allowed would confirm it. Keep the default."
    return ". Until it is confirmed keep the default."


def _num_common(rounds: Mapping[int, ByRound], leader: int) -> int:
    """Return how many rounds the default shares with the leader, or where it leads with its best measured rival."""
    rivals = [leader] if leader != DEFAULT else [cell for cell in rounds if cell != DEFAULT]
    theirs = rounds.get(DEFAULT, {})
    return max((len(rounds.get(cell, {}).keys() & theirs.keys()) for cell in rivals), default=0)


def _plain(verdict: Verdict) -> dict[str, float | None]:
    """Return the ratio for JSON, which has no NaN."""
    bounds = zip(("value", "low", "high"), verdict.ratio[:3], strict=True)
    return {name: bound if math.isfinite(bound) else None for name, bound in bounds}
