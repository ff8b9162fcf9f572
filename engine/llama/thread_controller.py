"""How many threads compute the next decode. Pure: figures of past decodes in, a number out; no clock, no llama.cpp.

The threads of llama.cpp wait for each other several hundred times a decode, and spin meanwhile. Where one of them loses
its core to another program all wait for it: a decode takes 4 to 8 times as long, and one thread fewer is then faster
than all. So the number is measured: a trial computes a few decodes with the next number of a ladder and compares them
with their neighbours, each over what its size takes (seconds by number of tokens), as batches differ and texts grow.

What decides is always a trial. The other figures only say when one is worth it:

- fewer, at once: decodes stretch, while threads were preempted or got less processor time than they ran;
- fewer, seldom: to see whether the last thread gains anything; one that gains under 2 % is given up;
- more: cores stood idle. Where they did not, a trial costs several decodes, so it waits until its price is below 0.5 %
  of the time. Where the system does not tell, its price may be 5 %, for at most 2 s without one.

Trials begin at random times around their due one, so that two programs that share a machine do not try together.
Prompts and steps of 1, 2-3, 4-7 ... tokens are decided apart: a prompt is bound by arithmetic, one token by memory.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from engine.llama.thread_trial import AS_FAST, FASTER, HOPELESS, LONGEST_TRIAL, TRIAL_DECODES, Trial, middle

# What a trial costs, as a share of the time of all decodes.
_FREE_S, _CALM_SHARE = 0.06, 0.005
"""Trials of fewer threads that nothing calls for: seconds, and so much of the time besides."""
_BLIND_SHARE = 0.05
"""Trials of more threads where the system does not say whether cores are idle."""

# When one is worth it.
_STRETCHED, _FAR_STRETCHED = 1.3, 2.0
"""Times what a decode should take: with and without another sign that a thread lost its core."""
_LOST = 0.85
"""Processor time over what the threads should have got; below it one of them lost its core."""
_KNOWN_S, _GOT_MORE = 0.03, 0.3
"""Seconds after which that is known, and the cores that may be missing to the number that is tried first."""
_IDLE, _TAKEN = 0.7, 0.4
"""Idle part of the cores that more threads would take: free from the first on, until it is below the second."""
_SLOW_S = 0.1
"""Of such slow decodes two tell what three of the others do."""

_SHORTEST_S = 1e-9
"""What a coarse clock gives as 0."""

# Seconds of decoding until the next one: at first, and at most where it is in vain again and again.
_ALARM_PAUSE_S = (0.6, 16.0)
_CALM_PAUSE_S = (3.0, 128.0)
_EDGE_PAUSE_S = (0.05, 0.2)
_QUIET_PAUSE_S = (0.5, 16.0)
_BUSY_PAUSE_S = (4.0, 64.0)
_BLIND_PAUSE_S = (0.4, 1.6)
_REVERTED_S = 3.0
"""More threads that are given up again so soon count as in vain."""


class Decoded(NamedTuple):
    """What a decode took.

    cores_used: processor seconds of the process per second of decoding, NaN where not read. num_switches: involuntary
    context switches of its threads since the last reading. idle_cores: cores' worth that lately stood idle, of those
    that this process may use; NaN where the system does not tell.
    """

    elapsed_s: float
    cores_used: float = math.nan
    num_switches: int = 0
    idle_cores: float = math.nan


def ladder(most: int) -> tuple[int, ...]:
    """Numbers of threads worth trying, fewest first: 1, a quarter, half, three quarters, all but one, all."""
    return tuple(sorted({1, max(1, most // 4), max(1, most // 2), max(1, 3 * most // 4), max(1, most - 1), most}))


class ThreadController:
    """One worker's numbers of threads. Ask choose() before a decode and tell observe() what it took.

    most: the highest number for either kind. random: gives [0, 1).
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
        """Threads for the next decode, of a batch of so many tokens."""
        key = is_prompt, num_tokens.bit_length()
        choice = self._choices.get(key)
        if choice is None:
            choice = self._choices[key] = _Choice(self, ladder(self._most), self._start, is_prompt=is_prompt)
        self._last[is_prompt] = self._current = choice
        self._num_tokens = num_tokens
        return choice.trial.threads if choice.trial else choice.threads

    def observe(self, decoded: Decoded) -> None:
        """What the decode took that choose() was asked for last."""
        if self._current is not None:
            self.now += decoded.elapsed_s
            self._current.observe(self._num_tokens, decoded)

    def in_use(self, *, is_prompt: bool) -> int:
        """The number decided on for the kind, that of a trial left out."""
        choice = self._last.get(is_prompt)
        return choice.threads if choice else self._most

    def pause(self, seconds: float) -> float:
        """A time in the future, around so many seconds of decoding from now."""
        return self.now + seconds * (0.75 + 0.5 * self._random())

    def lowered(self, by: "_Choice") -> None:
        """Company has come, seen at one size: the others take no more threads either."""
        self._start = by.threads
        for choice in self._choices.values():
            if choice is not by and choice.threads > by.threads:
                choice.follow(by.threads)

    def has_room(self, threads: int) -> None:
        """So many threads have cores again, seen at one size: the others are as they were before company came."""
        self._start = max(self._start, threads)
        for choice in self._choices.values():
            if choice.threads < (number := min(choice.before_company, threads)):
                choice.follow(number)


class _Choice:
    """The number of threads for decodes of about one size, and what it rests on."""

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
        """Forget what belonged to another number of threads."""
        self._recent: deque[float] = deque(maxlen=3)
        self._neighbours: deque[float] = deque(maxlen=LONGEST_TRIAL)
        self._switched_at, self._recent_s = -math.inf, 0.0
        self._used, self._used_s = 0.0, 0.0

    def observe(self, num_tokens: int, decoded: Decoded) -> None:
        """One more decode, with the number that was in force."""
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
        """Seconds that a size not seen before should take: those of the nearest one, by the root of their ratio."""
        if not self._expected:
            return elapsed_s
        nearest = min(self._expected, key=lambda known: abs(known - size))
        return self._expected[nearest] * math.sqrt(size / nearest)

    def _look(self, elapsed_s: float) -> None:
        """See whether a trial is due."""
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
        """The highest rung below `rung` for whose threads there was processor time."""
        got = self._used if self._used_s > _KNOWN_S else math.inf
        return max((lower for lower in range(rung) if self._rungs[lower] <= got + _GOT_MORE), default=0)

    def _is_disturbed(self, stretch: float) -> bool:
        """True where threads seem to have lost their cores: slower than it should be, with a reason."""
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
        """End the trial where it has a result: take its number, or stay and say when to look again."""
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
        # what shares the machine may be about to take fewer itself
        self._next_alarm, self._next_calm = owner.pause(self._alarm_s), owner.now
        if trial.result < _LOST:
            self._make_way(trial)
        else:
            self._more_s = min(2 * self._more_s, _QUIET_PAUSE_S[1])
            self._next_more, self._was_quiet = owner.pause(self._more_s), True

    def _make_way(self, trial: Trial) -> None:
        """Fewer threads are faster, so there is company: as soon as cores are idle, more are tried again."""
        owner = self._owner
        if trial.is_alarm:
            owner.lowered(self)
        was_reverted = owner.now - self._raised_at < _REVERTED_S
        self._edge_s = min(2 * self._edge_s, _EDGE_PAUSE_S[1]) if was_reverted else _EDGE_PAUSE_S[0]
        self._more_s, self._was_quiet = _QUIET_PAUSE_S[0], False
        self._next_more = owner.pause(_BLIND_PAUSE_S[0] if math.isnan(self._idle_cores) else _BUSY_PAUSE_S[0])

    def follow(self, threads: int) -> None:
        """Take the number that another size was found to do best with."""
        self.before_company = max(self.before_company, self.threads) if threads < self.threads else 0
        self.threads, self.trial = threads, None
        self._expected.clear()
        self._begin()
        self._next_more = self._owner.pause(_BUSY_PAUSE_S[0])

    def _stay_above(self, trial: Trial) -> None:
        """Fewer threads were slower: further down where company called for it, else not soon again."""
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
        """More threads gained nothing."""
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
