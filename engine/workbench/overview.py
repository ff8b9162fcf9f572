"""Overview of a workbench: facts of this machine, the latest trials with their surprise, and the change in a week."""

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.history import TrialSummary
from engine.history.activity import WEEK, Week, speed_name
from engine.units import counted, quantity
from engine.workbench.machine_card import MachineCard
from engine.workbench.machine_facts import Fact, facts_of, newest_search
from engine.workbench.workbench import Workbench

MOST_BARS = 96
"""Bars of a sparkline; in longer trials several tokens share one, which has the most surprising of them."""

SMALLEST_CHANGE = 0.02
"""Ratio of two weeks' speeds, less 1, below which they count as equal."""


class RecentTrial(NamedTuple):
    """Trial of a list. bits: surprise of its generated tokens, at most MOST_BARS numbers, NaN where not recorded."""

    summary: TrialSummary
    bits: tuple[float, ...]


class Weeks(NamedTuple):
    """The last seven days, the seven before, and their differences as sentences, the most important first."""

    latest: Week
    before: Week
    changes: tuple[str, ...]


def machine_facts(bench: Workbench, card: MachineCard | None) -> tuple[Fact, ...]:
    """Return the facts of this machine with the loaded model. Raises HistoryError."""
    history, state = bench.history, bench.model
    if history is None or state.identity is None:
        return facts_of(card)
    search = newest_search(history, Path(state.identity.path).stem)
    speeds = history.activity.week(datetime.now(UTC)).speeds if card is None else {}
    dtype = state.engine.spec.dtype if state.engine is not None else None
    return facts_of(card, search, speeds.get(speed_name(state.identity.name, dtype)))


def recent_trials(bench: Workbench, limit: int) -> list[RecentTrial]:
    """Return the newest trials of the pages, newest first, including those that run. Raises HistoryError."""
    found = bench.trials.recent(limit)
    live = {trial.id: trial for trial in bench.trials.in_memory()}
    stored = [one.id for one in found if one.id not in live]
    paths = bench.history.paths(stored) if bench.history is not None and stored else {}
    logprobs = {id: path.logprobs for id, path in paths.items()}
    logprobs |= {id: trial.steps.records["logprob"] for id, trial in live.items()}
    return [RecentTrial(one, bars(logprobs.get(one.id, np.zeros(0)))) for one in found]


def bars(logprobs: npt.NDArray[np.float64], most: int = MOST_BARS) -> tuple[float, ...]:
    """Return the surprise in bits of log-probabilities in nats, shape (n,), as at most `most` bars."""
    if not len(logprobs):
        return ()
    share = -(-len(logprobs) // most)
    lowest = np.fmin.reduceat(logprobs, np.arange(0, len(logprobs), share))
    return tuple((lowest / -math.log(2)).tolist())


def weeks(bench: Workbench, now: datetime | None = None) -> Weeks | None:
    """Return the last two weeks; None without a usable history. Raises HistoryError."""
    if bench.history is None:
        return None
    end = now or datetime.now(UTC)
    latest, before = (bench.history.activity.week(at) for at in (end, end - WEEK))
    return Weeks(latest, before, tuple(changes_of(latest, before)))


def changes_of(latest: Week, before: Week) -> Iterator[str]:
    """Yield the differences between two weeks as sentences; none of a speed without trials in both."""
    if latest.llama and before.llama and latest.llama != before.llama:
        yield f"llama.cpp {before.llama} → {latest.llama}."
    both = [name for name in latest.speeds if name in before.speeds]
    for name in both:
        now, then = latest.speeds[name], before.speeds[name]
        is_same = abs(now.per_s / then.per_s - 1) < SMALLEST_CHANGE
        said = "unchanged at" if is_same else f"{quantity(then.per_s, 'tok/s')} →"
        trials = f"{counted(now.num_trials, 'trial')} after {then.num_trials:,}"
        yield f"{name}: {said} {quantity(now.per_s, 'tok/s')} ({trials})."
    new = [name for name in latest.speeds if name not in before.speeds]
    if new and before.speeds:
        yield f"First used in these 7 days: {_listed(new)}."


def _listed(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
