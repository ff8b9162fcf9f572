"""Thread controller: chooses the thread count of the next decode from measurements of past ones. Pure: no clock, no
llama.cpp.

The threads of llama.cpp synchronise several hundred times per decode, by spinning. When one of them loses its core to
another program, all wait for it: a decode takes 4 to 8 times as long, and one thread fewer is then faster than all. So
the count is found by measurement: a trial computes a few decodes with the next count of a ladder and compares them with
the decodes before, each relative to the expected time of its size (seconds by number of tokens), as batches differ and
texts grow.

The decision is always based on a trial. The other figures only determine when one is worthwhile:

- fewer threads, immediately: decodes take longer than expected while threads were preempted or got less CPU time than
  they ran;
- fewer threads, rarely: to see whether the last thread gains anything; one that gains under 2 % is given up;
- more threads: cores were idle. If they were not, a trial costs several decodes, so it waits until its cost is below
  0.5 % of the time. If the system does not report idle cores, its cost may be 5 %, with at most 2 s between trials.

Trials begin at random times around the due time, so that two programs that share a machine do not try simultaneously.
Prompts and steps of 1, 2-3, 4-7 ... tokens are decided separately: a prompt is compute-bound, one token memory-bound.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from engine.llama.thread_trial import AS_FAST, FASTER, HOPELESS, LONGEST_TRIAL, TRIAL_DECODES, Trial, middle

# Cost of trials, as a share of the time of all decodes.
_FREE_S, _CALM_SHARE = 0.06, 0.005
"""Budget of routine trials of fewer threads: initial seconds, plus this share of the time."""
_BLIND_SHARE = 0.05
"""Budget of trials of more threads if the system does not report idle cores."""

# Conditions for a trial.
_STRETCHED, _FAR_STRETCHED = 1.3, 2.0
"""Thresholds for measured over expected decode time: with and without other evidence that a thread lost its core."""
_LOST = 0.85
"""CPU time over that of all threads running throughout; below it one of them lost its core."""
_KNOWN_S, _GOT_MORE = 0.03, 0.3
"""Seconds of decoding after which the cores used are known, and by how many cores the first thread count to be tried
may exceed them."""
_IDLE, _TAKEN = 0.7, 0.4
"""Hysteresis for the idle fraction of the cores that more threads would use: free from the first threshold upwards,
until the fraction falls below the second."""
_SLOW_S = 0.1
"""Seconds; of decodes slower than this two are enough evidence, of others three."""

_SHORTEST_S = 1e-9
"""Substitute for a duration that a coarse clock reports as 0."""

# Seconds of decoding until the next trial: initially, and at most, after repeated trials without a gain.
_ALARM_PAUSE_S = (0.6, 16.0)
_CALM_PAUSE_S = (3.0, 128.0)
_EDGE_PAUSE_S = (0.05, 0.2)
_QUIET_PAUSE_S = (0.5, 16.0)
_BUSY_PAUSE_S = (4.0, 64.0)
_BLIND_PAUSE_S = (0.4, 1.6)
_REVERTED_S = 3.0
"""More threads that are given up again within these seconds count as a trial without a gain."""


class Decoded(NamedTuple):
    """Measurements of one decode.

    cores_used: CPU seconds of the process per second of decoding, NaN if not read. num_switches: involuntary context
    switches of its threads since the last reading. idle_cores: recently idle CPU time in cores, of those that this
    process may use; NaN if the system does not report it.
    """

    elapsed_s: float
    cores_used: float = math.nan
    num_switches: int = 0
    idle_cores: float = math.nan


def ladder(most: int) -> tuple[int, ...]:
    """Return the thread counts worth trying, ascending: 1, a quarter, half, three quarters, all but one, all."""
    return tuple(sorted({1, max(1, most // 4), max(1, most // 2), max(1, 3 * most // 4), max(1, most - 1), most}))


class ThreadController:
    """Controller of one worker's thread counts. Call choose() before a decode and observe() with its measurements.

    most: the maximum count for prompts and for steps. random: returns a number in [0, 1).
    """

    def __init__(self, most: int, random: Callable[[], float]) -> None:
        self._most, self._random = most, random
        self._start = most
        self._choices: dict[tuple[bool, int], _Choice] = {}
        self._last: dict[bool, _Choice] = {}
        self._current: _Choice | None = None
        self._num_tokens = 0
        self.now = 0.0
        self.spent = 0.0
        self.has_tried = False

    def choose(self, num_tokens: int, *, is_prompt: bool) -> int:
        """Return the thread count for the next decode, of a batch of `num_tokens`."""
        key = is_prompt, num_tokens.bit_length()
        choice = self._choices.get(key)
        if choice is None:
            choice = self._choices[key] = _Choice(self, ladder(self._most), self._start, is_prompt=is_prompt)
        self._last[is_prompt] = self._current = choice
        self._num_tokens = num_tokens
        return choice.trial.threads if choice.trial else choice.threads

    def observe(self, decoded: Decoded) -> None:
        """Record the measurements of the decode for which choose() was last called."""
        if self._current is not None:
            self.now += decoded.elapsed_s
            self._current.observe(self._num_tokens, decoded)

    def in_use(self, *, is_prompt: bool) -> int:
        """Return the count decided on for the kind, ignoring that of a trial."""
        choice = self._last.get(is_prompt)
        return choice.threads if choice else self._most

    def pause(self, seconds: float) -> float:
        """Return a random time around `seconds` of decoding from now."""
        return self.now + seconds * (0.75 + 0.5 * self._random())

    def lowered(self, by: "_Choice") -> None:
        """Lower the other sizes to this size's count: it has shown that another program competes for the cores."""
        self._start = by.threads
        for choice in self._choices.values():
            if choice is not by and choice.threads > by.threads:
                choice.follow(by.threads)

    def has_room(self, threads: int) -> None:
        """Restore the other sizes' counts from before the competition, up to `threads`, for which one size has shown
        that cores are available again."""
        self._start = max(self._start, threads)
        for choice in self._choices.values():
            if choice.threads < (number := min(choice.before_company, threads)):
                choice.follow(number)


class _Choice:
    """Thread count for decodes of about one size, and the evidence it is based on."""

    def __init__(self, owner: ThreadController, rungs: tuple[int, ...], start: int, *, is_prompt: bool) -> None:
        self._owner, self._rungs, self._is_prompt = owner, rungs, is_prompt
        self.threads = start
        self.before_company = 0
        self.trial: Trial | None = None
        self._next_alarm = self._next_more = self._next_calm = 0.0
        self._alarm_s, self._calm_s = _ALARM_PAUSE_S[0], _CALM_PAUSE_S[0]
        self._more_s, self._edge_s = _QUIET_PAUSE_S[0], _EDGE_PAUSE_S[0]
        self._raised_at = -math.inf
        self._idle_cores = math.nan
        self._was_quiet = False
        self._given_up = 1.0
        self._begin()
        self._expected: dict[int, float] = {}

    def _begin(self) -> None:
        """Discard measurements made with another thread count."""
        self._recent: deque[float] = deque(maxlen=3)
        self._neighbours: deque[float] = deque(maxlen=LONGEST_TRIAL)
        self._switched_at, self._recent_s = -math.inf, 0.0
        self._used, self._used_s = 0.0, 0.0

    def observe(self, num_tokens: int, decoded: Decoded) -> None:
        """Record one more decode, made with the current count or that of the trial."""
        size = 1 if self._is_prompt else num_tokens
        whole_s = max(decoded.elapsed_s, _SHORTEST_S)
        elapsed_s = whole_s / num_tokens if self._is_prompt else whole_s
        expected_s = self._expected.get(size) or self._guess(size, elapsed_s)
        if self.trial is not None:
            self.trial.add(whole_s, expected_s * num_tokens if self._is_prompt else expected_s)
            self._judge(self.trial)
            return
        self._idle_cores = decoded.idle_cores
        ratio = elapsed_s / expected_s
        self._expected[size] = expected_s * min(max(ratio, 0.5), 1.01)
        self._recent.append(ratio)
        self._neighbours.append(ratio)
        self._recent_s = max(3 * decoded.elapsed_s, 0.02)
        if decoded.num_switches:
            self._switched_at = self._owner.now
        if decoded.cores_used == decoded.cores_used:
            weight = max(0.2, min(1.0, decoded.elapsed_s / 0.05))
            self._used += weight * (decoded.cores_used - self._used) if self._used_s else decoded.cores_used
            self._used_s += decoded.elapsed_s
        if len(self._recent) == self._recent.maxlen or (len(self._recent) > 1 and decoded.elapsed_s > _SLOW_S):
            self._look(decoded.elapsed_s)

    def _guess(self, size: int, elapsed_s: float) -> float:
        """Return the expected seconds of a new size: those of the nearest known size, scaled by the square root of the
        ratio of sizes."""
        if not self._expected:
            return elapsed_s
        nearest = min(self._expected, key=lambda known: abs(known - size))
        return self._expected[nearest] * math.sqrt(size / nearest)

    def _look(self, elapsed_s: float) -> None:
        """Start a trial if one is due."""
        now, rung = self._owner.now, self._rungs.index(self.threads)
        stretch = middle(self._recent)
        if rung:
            if self._is_disturbed(stretch):
                if now >= self._next_alarm:
                    self._try(self._rungs[self._rung_got(rung)], stretch, is_alarm=True)
                    return
            elif now >= self._next_calm and self._may_spend(elapsed_s, self.threads / self._rungs[rung - 1] - 1):
                self._try(self._rungs[rung - 1], middle(self._neighbours))
                return
        if rung + 1 < len(self._rungs):
            more = self._rungs[rung + 1]
            is_quiet = self._idle_cores >= (_TAKEN if self._was_quiet else _IDLE) * (more - self.threads)
            if is_quiet and not self._was_quiet:
                self._next_more = min(self._next_more, self._owner.pause(self._edge_s))
            self._was_quiet = is_quiet
            if now >= self._next_more:
                self._try(more, middle(self._neighbours))

    def _rung_got(self, rung: int) -> int:
        """Return the highest rung below `rung` for whose threads there was enough CPU time."""
        got = self._used if self._used_s > _KNOWN_S else math.inf
        return max((lower for lower in range(rung) if self._rungs[lower] <= got + _GOT_MORE), default=0)

    def _is_disturbed(self, stretch: float) -> bool:
        """Return True if threads seem to have lost their cores: slower than expected or short of CPU time, and settled
        at that."""
        is_short = self._used_s > _KNOWN_S and self._used < _LOST * self.threads
        is_preempted = self._switched_at >= self._owner.now - self._recent_s
        is_stretched = stretch > _STRETCHED
        is_settled = self._recent[-1] < _STRETCHED * stretch
        return is_settled and (is_short or stretch > _FAR_STRETCHED or (is_stretched and is_preempted))

    def _may_spend(self, elapsed_s: float, part: float) -> bool:
        owner = self._owner
        if not (owner.has_tried or self._is_prompt):
            return True
        num = 1 if part > HOPELESS - 1 else TRIAL_DECODES
        return owner.spent + elapsed_s * part * num <= _FREE_S + _CALM_SHARE * owner.now

    def _try(self, threads: int, baseline: float, *, is_alarm: bool = False) -> None:
        self.trial = Trial(threads, baseline, is_alarm=is_alarm)
        self._owner.has_tried = True

    def _judge(self, trial: Trial) -> None:
        """End the trial if it has a result: adopt its count, or stay and schedule the next trial."""
        is_more = trial.threads > self.threads
        bar = FASTER if is_more else AS_FAST / self._given_up
        if not trial.is_over(bar):
            return
        self.trial = None
        if trial.result <= bar:
            self._take(trial, is_more=is_more)
        elif is_more:
            self._stay_below(trial)
        else:
            self._stay_above(trial)

    def _take(self, trial: Trial, *, is_more: bool) -> None:
        owner, scale = self._owner, middle(trial.ratios)
        self._expected = {size: expected * scale for size, expected in self._expected.items()}
        self._given_up = 1.0 if is_more else self._given_up * max(trial.result, 1.0)
        self.threads, self.before_company = trial.threads, 0
        self._begin()
        self._alarm_s = _ALARM_PAUSE_S[0]
        if is_more:
            self._raised_at = self._next_more = owner.now
            self._next_calm = owner.pause(self._calm_s)
            owner.has_room(self.threads)
            return
        # the program that shares the machine may be about to use fewer threads itself
        self._next_alarm, self._next_calm = owner.pause(self._alarm_s), owner.now
        if trial.result < _LOST:
            self._make_way(trial)
        else:
            self._more_s = min(2 * self._more_s, _QUIET_PAUSE_S[1])
            self._next_more, self._was_quiet = owner.pause(self._more_s), True

    def _make_way(self, trial: Trial) -> None:
        """Yield to a competing program, as fewer threads are faster: more are tried again as soon as cores are idle."""
        owner = self._owner
        if trial.is_alarm:
            owner.lowered(self)
        was_reverted = owner.now - self._raised_at < _REVERTED_S
        self._edge_s = min(2 * self._edge_s, _EDGE_PAUSE_S[1]) if was_reverted else _EDGE_PAUSE_S[0]
        self._more_s, self._was_quiet = _QUIET_PAUSE_S[0], False
        self._next_more = owner.pause(_BLIND_PAUSE_S[0] if math.isnan(self._idle_cores) else _BUSY_PAUSE_S[0])

    def follow(self, threads: int) -> None:
        """Adopt the count that was found best for another size."""
        self.before_company = max(self.before_company, self.threads) if threads < self.threads else 0
        self.threads, self.trial = threads, None
        self._expected.clear()
        self._begin()
        self._next_more = self._owner.pause(_BUSY_PAUSE_S[0])

    def _stay_above(self, trial: Trial) -> None:
        """Stay at the current count, as fewer threads were slower.

        After an alarm, unless the result is hopeless, the next lower count is tried; else the next trial is postponed.
        """
        owner = self._owner
        rung = self._rungs.index(trial.threads)
        if trial.is_alarm and rung and trial.result <= HOPELESS:
            self._try(self._rungs[rung - 1], trial.baseline, is_alarm=True)
            return
        if trial.is_alarm:
            self._alarm_s = min(2 * self._alarm_s, _ALARM_PAUSE_S[1])
            self._next_alarm = owner.pause(self._alarm_s)
        else:
            owner.spent += max(trial.excess_s, 0.0)
        self._calm_s = min(2 * self._calm_s, _CALM_PAUSE_S[1])
        self._next_calm = owner.pause(self._calm_s)

    def _stay_below(self, trial: Trial) -> None:
        """Stay at the current count, as more threads gained nothing; schedule the next trial of more."""
        owner, excess_s = self._owner, max(trial.excess_s, 0.0)
        if trial.result < _STRETCHED:
            owner.has_room(trial.threads)
        if math.isnan(self._idle_cores):
            low, high = _BLIND_PAUSE_S
            seconds = min(max(excess_s / _BLIND_SHARE, low), high)
        elif self._was_quiet:
            self._more_s = min(2 * self._more_s, _QUIET_PAUSE_S[1])
            seconds = max(self._more_s, excess_s / _CALM_SHARE)
        else:
            low, high = _BUSY_PAUSE_S
            seconds = min(max(excess_s / _CALM_SHARE, low), high)
        self._next_more = owner.pause(seconds)
