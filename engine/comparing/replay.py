"""Replay: the tokens of a stored answer compared with those of the same request run again."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from engine.comparing.alignment import common_prefix
from engine.errors import quoted
from engine.step_parts import FORCED, INSPECTED
from engine.steps import StepTable, TokenStep
from engine.units import counted, exact
from engine.vocabulary import Vocabulary


class Stretch(NamedTuple):
    """Consecutive drawn tokens of an answer: index of the first, and of the one behind the last."""

    start: int
    stop: int


class Difference(NamedTuple):
    """First token that differs, by its position from 0; `replayed` is None where the replay ended before it.

    vocabularies: of the recorded and of the replayed tokens; that of a server has only those that it has sent.
    """

    position: int
    vocabularies: tuple[Vocabulary, Vocabulary]
    recorded: TokenStep
    replayed: TokenStep | None

    def text(self, token: int) -> str:
        """Return a token of either distribution as shown in a list."""
        is_recorded = token == self.recorded.id or any(token == other for other, _ in _candidates(self.recorded))
        return self.vocabularies[not is_recorded].text(token)

    @property
    def logprobs(self) -> list[tuple[int, float | None, float | None]]:
        """Both distributions: id of a candidate, and its log-probability as recorded and as replayed, in nats, None
        where it is not among the candidates; most probable first."""
        recorded, replayed = (dict(_candidates(step)) for step in (self.recorded, self.replayed))
        both = [(token, recorded.get(token), replayed.get(token)) for token in recorded | replayed]
        return sorted(both, key=lambda row: -max(figure for figure in row[1:] if figure is not None))


def _candidates(step: TokenStep | None) -> list[tuple[int, float]]:
    if step is None or step.logprob is None:
        return []
    return [(step.id, step.logprob), *step.top_logprobs]


@dataclass(frozen=True)
class Replay:
    """Outcome of a replay.

    num_tokens: tokens of the stored answer that its own run drew, or scored ones of the prompt if is_prompt; num_same:
    how many were the same before the first difference; num_forced: forced tokens, which were taken over. largest:
    largest change of the log-probability of a token that is the same, in nats, at the position largest_at; None where
    none was recorded.
    """

    num_tokens: int
    num_same: int
    num_forced: int
    is_prompt: bool
    largest: float | None
    largest_at: int | None
    difference: Difference | None

    @property
    def is_identical(self) -> bool:
        """True where all tokens are the same; their log-probabilities may differ."""
        return self.difference is None

    @property
    def sentence(self) -> str:
        """The outcome, in a sentence."""
        if self.difference is not None:
            return _sentence(self.difference)
        tokens = counted(self.num_tokens, "prompt token" if self.is_prompt else "token")
        if self.largest is None:
            return f"Identical: {tokens}; no log-probabilities were recorded."
        if self.largest == 0:
            return f"Identical: {tokens}, with the same log-probabilities."
        return f"Identical: {tokens}, log-probabilities within {exact(_rounded_up(self.largest))} nats."


def drawn(steps: StepTable, first: int = 0) -> list[Stretch]:
    """Return the stretches of drawn tokens from `first` on, between those that were forced."""
    is_drawn = np.concatenate([[False], steps.records["flags"][first:] & FORCED == 0, [False]])
    edges = (first + np.flatnonzero(is_drawn[1:] != is_drawn[:-1])).tolist()
    return [Stretch(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def compared(
    recorded: StepTable, replayed: Iterable[tuple[Stretch, StepTable]], *, first: int = 0, is_prompt: bool = False
) -> Replay:
    """Compare recorded steps with each stretch of them that was replayed, in order, up to the first difference.

    first: the first step that the trial's own run made. is_prompt: they are the tokens of a prompt that was only
    scored.
    """
    wanted = [Stretch(0, len(recorded))] if is_prompt else drawn(recorded, first)
    num_same, largest, largest_at, difference = 0, None, None, None
    for (start, stop), table in replayed:
        same = common_prefix([recorded.ids[start:stop], table.ids])
        num_same += same
        change, at = _largest_change(recorded, table, start, same)
        if change is not None and (largest is None or change > largest):
            largest, largest_at = change, at
        if start + same < stop:
            replayed_step = table[same] if same < len(table) else None
            vocabularies = recorded.vocabulary, table.vocabulary
            difference = Difference(start + same, vocabularies, recorded[start + same], replayed_step)
            break
    return Replay(
        num_tokens=sum(stop - start for start, stop in wanted),
        num_same=num_same,
        num_forced=0 if is_prompt else int((recorded.records["flags"][first:] & FORCED != 0).sum()),
        is_prompt=is_prompt,
        largest=largest,
        largest_at=largest_at,
        difference=difference,
    )


def _largest_change(recorded: StepTable, table: StepTable, start: int, num: int) -> tuple[float | None, int | None]:
    """Return the largest change of log-probability over `num` tokens, and its position; None where none is known."""
    ours, theirs = recorded.records[start : start + num], table.records[:num]
    known = np.flatnonzero(ours["flags"] & theirs["flags"] & INSPECTED)
    if not len(known):
        return None, None
    before, now = ours["logprob"][known], theirs["logprob"][known]
    with np.errstate(invalid="ignore"):
        change = np.where(before == now, 0.0, np.abs(before - now))
    at = int(np.argmax(change))
    return float(change[at]), start + int(known[at])


def _sentence(found: Difference) -> str:
    text = quoted(found.text(found.recorded.id))
    if found.replayed is None:
        return f"Ends after {counted(found.position, 'token')}; the recorded answer continues with {text}."
    other = quoted(found.text(found.replayed.id))
    return f"Differs first at token {found.position + 1:,}: {other} instead of {text}."


def _rounded_up(value: float) -> float:
    """Return a bound with one significant digit."""
    if math.isinf(value):
        return value
    scale = 10.0 ** math.floor(math.log10(value))
    return round(math.ceil(value / scale - 1e-9) * scale, 12)
