"""Cost estimate: time and money of a job on one configuration, with intervals and assumptions."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, NamedTuple

from engine.cost.job import CostJob
from engine.cost.prices import Price, prices_for
from engine.cost.rates import Rate, Speed
from engine.stats import Interval
from engine.stats.intervals import NOTHING
from engine.units import HOUR_S, duration

Way = Literal["apart", "notes"]
WAYS: tuple[Way, ...] = ("apart", "notes")
"""Ways of counting. apart: prompt tokens at prefill speed, output at generation speed. notes: as in note A, all tokens
at generation speed, and the hours rounded to three digits before they are priced."""


class Part(NamedTuple):
    """One part of the work: a number of tokens or sentences; speed None where unknown. hours: at full utilisation."""

    name: str
    amount: float
    unit: str
    speed: Speed | None
    hours: Interval


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Time and money that a job takes on a configuration.

    hours, dollars: value NaN where a required speed is unknown, with bounds where those can be given all the same;
    dollars and ktokens_per_usd are NaN without a price. assumptions: what it rests on besides the speeds of its parts,
    each a few words.
    """

    rate: Rate
    price: Price | None
    way: Way
    hours: Interval
    dollars: Interval
    ktokens_per_usd: Interval
    parts: tuple[Part, ...]
    assumptions: tuple[str, ...]


def estimate(job: CostJob, rate: Rate, price: Price | None = None, *, counted_as: Way = "apart") -> Estimate:
    """Estimate time and money of `job` at the speeds of `rate`.

    The bounds of the parts are added, so that the interval is rather too wide than too narrow; a part without bounds
    counts with its value. Prompt tokens of a rate without a prefill speed take between no time at all and that of
    generating as many.
    """
    parts = _parts(job, rate, counted_as)
    work = reduce(_sum, (part.hours for part in parts))
    hours = _each(work, lambda full: full / job.utilisation + job.startup_s / HOUR_S)
    if counted_as == "notes":
        hours = _each(hours, _three_digits)
    return Estimate(
        rate=rate,
        price=price,
        way=counted_as,
        hours=hours,
        dollars=_scaled(hours, price.hourly_usd) if price else NOTHING,
        ktokens_per_usd=ktokens_per_usd(rate, price) if price else NOTHING,
        parts=parts,
        assumptions=_assumptions(job, rate, parts, counted_as),
    )


def estimates(
    job: CostJob, rates: Iterable[Rate], prices: Sequence[Price], *, counted_as: Way = "apart"
) -> list[Estimate]:
    """Return one estimate for each rate and each price of its machine; without a price where its machine has none."""
    found = []
    for rate in rates:
        priced = [estimate(job, rate, price, counted_as=counted_as) for price in prices_for(rate.machine, prices)]
        found += priced or [estimate(job, rate, counted_as=counted_as)]
    return found


def ktokens_per_usd(rate: Rate, price: Price) -> Interval:
    """Return thousands of generated tokens per dollar: speed × 3,600 / 1,000 / dollars per hour."""
    return _scaled(rate.generation.per_s, HOUR_S / 1000 / price.hourly_usd)


def _parts(job: CostJob, rate: Rate, way: Way) -> tuple[Part, ...]:
    generation = _generation(rate, job.concurrency)
    if way == "notes":
        parts = [_part("tokens", job.num_tokens, "tokens", generation)]
    else:
        parts = [_prompt(job, rate, generation), _part("output", job.num_output, "tokens", generation)]
    parts.append(_part("embedding", job.embedding_sentences, "sentences", rate.embedding))
    return tuple(part for part in parts if part.amount)


def _generation(rate: Rate, concurrency: int) -> Speed:
    """Return the generation speed of `concurrency` documents together.

    Fewer streams than were measured have at least their share of the speed; more are no faster than those measured.
    """
    speed, num = rate.generation, rate.num_streams
    if not concurrency or num is None or concurrency == num:
        return speed
    share = min(concurrency / num, 1.0)
    taken = "at least their share of" if share < 1 else "at most"
    remark = f"{concurrency:,} at once have {taken} the speed measured with {num:,}"
    return Speed(_scaled(speed.per_s, share), "assumed", "; ".join(filter(None, (speed.remark, remark))))


def _prompt(job: CostJob, rate: Rate, generation: Speed) -> Part:
    if rate.prefill is not None:
        return _part("prompt", job.num_prompt, "tokens", rate.prefill)
    generated = _hours(job.num_prompt, generation.per_s)
    return Part("prompt", job.num_prompt, "tokens", None, Interval(math.nan, 0.0, _bound(generated, 2), generated.num))


def _part(name: str, amount: float, unit: str, speed: Speed | None) -> Part:
    return Part(name, amount, unit, speed, _hours(amount, speed.per_s) if speed else NOTHING)


def _hours(amount: float, per_s: Interval) -> Interval:
    value, low, high = (amount / HOUR_S / speed if speed > 0 else math.nan for speed in per_s[:3])
    return Interval(value, high, low, per_s.num)


def _scaled(interval: Interval, factor: float) -> Interval:
    return _each(interval, lambda figure: figure * factor)


def _each(interval: Interval, change: Callable[[float], float]) -> Interval:
    """Return the interval with value and bounds changed alike."""
    return Interval(change(interval.value), change(interval.low), change(interval.high), interval.num)


def _sum(one: Interval, other: Interval) -> Interval:
    has_bounds = math.isfinite(one.low) or math.isfinite(other.low)
    low, high = (_bound(one, side) + _bound(other, side) if has_bounds else math.nan for side in (1, 2))
    return Interval(one.value + other.value, low, high, min(one.num, other.num))


def _bound(interval: Interval, side: int) -> float:
    """Return the low (1) or high (2) end of the interval, its value where it has none."""
    bound = float(interval[side])
    return bound if math.isfinite(bound) else interval.value


def _three_digits(hours: float) -> float:
    return float(f"{hours:.3g}")


def _assumptions(job: CostJob, rate: Rate, parts: tuple[Part, ...], way: Way) -> tuple[str, ...]:
    texts = []
    if job.is_from_words and job.num_prompt:
        texts.append(f"{job.tokens_per_word:g} tokens per word")
    if way == "notes":
        texts.append("prompt tokens as slow as generated ones, hours rounded to three digits, as in the noted figures")
    unknown = {part.name for part in parts if part.speed is None}
    if "prompt" in unknown:
        why = "not noted" if rate.generation.provenance in ("noted", "assumed") else "not measured"
        texts.append(f"prefill speed {why}: between no time and that of generating as many tokens")
    if "embedding" in unknown:
        texts.append("embedding speed of this machine unknown")
    if job.utilisation < 1:
        texts.append(f"{100 * job.utilisation:.3g} % of the paid time is work")
    if job.startup_s:
        texts.append(f"{duration(job.startup_s)} of start-up, paid once")
    return tuple(texts)
