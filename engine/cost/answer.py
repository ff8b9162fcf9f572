"""Recommended configuration, in a sentence: the fastest versus the cheapest, or the best for a deadline or budget."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.cost.estimate import Estimate
from engine.cost.rates import begun
from engine.errors import ConfigError, quoted
from engine.units import HOUR_S, dollars, time_taken

MOST_HOURS = 1e9
"""Hours from which a deadline is written as a number."""

_MISSING = {"prompt": "prefill", "embedding": "embedding"}
"""Name of the unknown speed, where a part has none."""


class Answer(NamedTuple):
    """Recommendation. chosen: the estimate to take, None where none is suitable; without a goal the fastest."""

    sentence: str
    chosen: Estimate | None


def answer(
    estimates: Sequence[Estimate], *, deadline_h: float | None = None, budget_usd: float | None = None
) -> Answer:
    """Recommend one of the estimates of a job, all counted the same way.

    With a deadline the cheapest that ends by it; with a budget the fastest that costs no more; with both the cheapest
    that meets both; else the fastest versus the cheapest. Where no hours are known, the bounds decide. Raises
    ConfigError for a goal that is not above 0.
    """
    for name, goal in (("deadline_h", deadline_h), ("budget_usd", budget_usd)):
        if goal is not None and not goal > 0:
            raise ConfigError(f"{name} = {quoted(goal)}: must be above 0")
    answer = _answer(estimates, deadline_h, budget_usd)
    return answer._replace(sentence=begun(answer.sentence))


def answer_here(estimates: Iterable[Estimate]) -> Answer | None:
    """Return time and cost of this machine's fastest configuration as a sentence; None where it was not measured.

    Where its hours are unknown, the sentence has their bounds.
    """
    own = fastest_first(one for one in estimates if one.rate.is_here)
    if not own:
        return None
    if not math.isfinite(own[0].hours.value):
        return Answer(begun(_at_most(own, None, None)), None)
    return Answer(begun(f"{own[0].rate.place} {_takes(own[0])}."), own[0])


def fastest_first(estimates: Iterable[Estimate]) -> list[Estimate]:
    """Return estimates sorted by hours, of equal ones the cheaper first; those with unknown hours last, by bound."""
    return sorted(estimates, key=lambda one: (_last(one.hours.value), _last(one.hours.high), _last(one.dollars.value)))


def _answer(estimates: Sequence[Estimate], deadline_h: float | None, budget_usd: float | None) -> Answer:
    known = fastest_first(estimate for estimate in estimates if math.isfinite(estimate.hours.value))
    if not estimates:
        return Answer("No speeds to estimate from: measure a model, or select a reference machine.", None)
    if not known:
        return Answer(_at_most(estimates, deadline_h, budget_usd), None)
    priced = [estimate for estimate in known if math.isfinite(estimate.dollars.value)]
    if budget_usd is not None and not priced:
        return Answer(_no_budget(estimates, deadline_h, budget_usd), None)
    if deadline_h is not None:
        return _by_deadline(known, priced, deadline_h, budget_usd)
    if budget_usd is not None:
        return _under_budget(priced, budget_usd)
    if not priced:
        return Answer(f"{_sentence(known[0], _names(known))}; {_unpriced(estimates)}.", known[0])
    return _fastest_and_cheapest(known, priced)


def _by_deadline(known: list[Estimate], priced: list[Estimate], deadline_h: float, budget_usd: float | None) -> Answer:
    if known[0].hours.value > deadline_h:
        return Answer(_too_slow(known, priced, deadline_h, budget_usd), None)
    limit, names = f"within {_limit(deadline_h)}", _names(known)
    in_time = [one for one in priced if one.hours.value <= deadline_h]
    if budget_usd is not None:
        limit += f" for at most {dollars(budget_usd)}"
        if not _affordable(in_time, budget_usd):
            return Answer(f"Nothing finishes {limit}: {_too_dear(priced, in_time, budget_usd, names)}.", None)
    elif not in_time:
        return Answer(f"{_sentence(known[0], names)}; no machine that finishes {limit} has a price.", known[0])
    chosen = _cheapest(in_time)
    doubt = f", though its interval reaches {_hours(chosen.hours.high)}" if chosen.hours.high > deadline_h else ""
    return Answer(f"{_sentence(chosen, names)}: the cheapest that finishes {limit}{doubt}.", chosen)


def _too_slow(known: list[Estimate], priced: list[Estimate], deadline_h: float, budget_usd: float | None) -> str:
    """Return the sentence where nothing ends in time: the fastest within the budget and a remedy, else the obstacle."""
    names, none = _names(known), f"Nothing finishes within {_limit(deadline_h)}"
    if budget_usd is None:
        return f"{none}: the fastest, {_aside(known[0], names)}. {_help(known[0], deadline_h)}"
    affordable = _affordable(priced, budget_usd)
    if affordable:
        which = "" if affordable[0] is known[0] else f" for at most {dollars(budget_usd)}"
        return f"{none}: the fastest{which}, {_aside(affordable[0], names)}. {_help(affordable[0], deadline_h)}"
    cheapest = _cheapest(priced)
    fastest = f"the fastest, {_aside(known[0], names)}; " if cheapest is not known[0] else ""
    return f"{none} or costs {dollars(budget_usd)} or less: {fastest}the cheapest, {_aside(cheapest, names)}."


def _too_dear(priced: list[Estimate], in_time: list[Estimate], budget_usd: float, names: dict[int, str]) -> str:
    """Return the clause on the cheapest that ends in time, and on what the budget allows instead."""
    cheapest, parts = _cheapest(priced), []
    if in_time and _cheapest(in_time) is not cheapest:
        parts.append(f"the cheapest in that time, {_aside(_cheapest(in_time), names)}")
    affordable = _affordable(priced, budget_usd)
    if affordable:
        parts.append(f"the fastest for that money, {_aside(affordable[0], names)}")
    return "; ".join(parts or [f"the cheapest, {_aside(cheapest, names)}"])


def _affordable(priced: list[Estimate], budget_usd: float) -> list[Estimate]:
    return [one for one in priced if one.dollars.value <= budget_usd]


def _help(fastest: Estimate, deadline_h: float) -> str:
    """Return what would help where even the fastest is too slow."""
    ratio = fastest.hours.value / deadline_h
    shared = f", or split the documents between {math.ceil(ratio):,} of them" if ratio < 10_000 else ""
    return f"Allow {_hours(fastest.hours.value - deadline_h)} more{shared}."


def _under_budget(priced: list[Estimate], budget_usd: float) -> Answer:
    names = _names(priced)
    fit = _affordable(priced, budget_usd)
    if fit:
        return Answer(f"{_sentence(fit[0], names)}: the fastest for at most {dollars(budget_usd)}.", fit[0])
    cheapest = _aside(_cheapest(priced), names)
    return Answer(f"Nothing costs {dollars(budget_usd)} or less: the cheapest, {cheapest}.", None)


def _fastest_and_cheapest(known: list[Estimate], priced: list[Estimate]) -> Answer:
    names = _names(known)
    fastest, cheapest = priced[0], _cheapest(priced)
    if fastest is cheapest:
        praise = ": the fastest and the cheapest" if len(priced) > 1 else ""
        return Answer(f"{_sentence(fastest, names)}{praise}.", fastest)
    sooner = _hours(cheapest.hours.value - fastest.hours.value)
    more = dollars(fastest.dollars.value - cheapest.dollars.value)
    doubt = ", though their intervals overlap" if fastest.hours.high >= cheapest.hours.low else ""
    sentence = f"{names[id(fastest)]} finishes {sooner} sooner than {names[id(cheapest)]} for {more} more{doubt}."
    return Answer(sentence, fastest)


def _at_most(estimates: Sequence[Estimate], deadline_h: float | None, budget_usd: float | None) -> str:
    """Return the sentence from bounds where no time is known: the best of those sure to meet the goals, if any."""
    missing = sorted({_MISSING[part.name] for one in estimates for part in one.parts if part.speed is None})
    why = f"the {' and '.join(missing)} speed is unknown"
    bounded = [one for one in estimates if math.isfinite(one.hours.high)]
    if not bounded:
        return f"The time cannot be estimated: {why}."
    affordable = [one for one in bounded if budget_usd is None or one.dollars.high <= budget_usd]
    sure = [one for one in affordable if deadline_h is None or one.hours.high <= deadline_h]
    by_cost = deadline_h is not None if sure else not affordable
    best = min(sure or affordable or bounded, key=lambda one: (by_cost and _last(one.dollars.high), one.hours.high))
    cost = f" and costs at most {dollars(best.dollars.high)}" if math.isfinite(best.dollars.high) else ""
    sentence = f"{_names(bounded)[id(best)]} takes at most {_hours(best.hours.high)}{cost}: {why}."
    return sentence if sure else f"Nothing is certain to meet that. {sentence}"


def _unpriced(estimates: Sequence[Estimate]) -> str:
    """Return why no known time has a price: no machine has one, or none of those whose time is known."""
    which = "whose time is known" if any(one.price is not None for one in estimates) else "here"
    return f"no machine {which} has a price"


def _no_budget(estimates: Sequence[Estimate], deadline_h: float | None, budget_usd: float | None) -> str:
    """Return why nothing can be said of a budget, and the bounds of the machines that have a price."""
    why, priced = _unpriced(estimates), [one for one in estimates if one.price is not None]
    sentence = _at_most(priced, deadline_h, budget_usd) if priced else "Add prices to the table."
    return f"{why[0].upper()}{why[1:]}, so a budget cannot be checked. {sentence}"


def _cheapest(priced: list[Estimate]) -> Estimate:
    return min(priced, key=lambda one: (one.dollars.value, one.hours.value))


def _names(estimates: Iterable[Estimate]) -> dict[int, str]:
    """Return a name for each estimate: its machine, with distinguishing details where the machine occurs repeatedly."""
    listed = list(estimates)
    names = {}
    for one in listed:
        alike = [other for other in listed if other.rate.machine == one.rate.machine]
        apart = [one.rate.place]
        if len({other.rate.label for other in alike}) > 1:
            apart.append(one.rate.label)
        if one.price is not None and len({other.price.region for other in alike if other.price}) > 1:
            apart.append(one.price.region or "no region")
        names[id(one)] = " · ".join(apart)
    return names


def _sentence(one: Estimate, names: dict[int, str]) -> str:
    return f"{names[id(one)]} {_takes(one)}"


def _aside(one: Estimate, names: dict[int, str]) -> str:
    return f"{names[id(one)]}, {_takes(one)}"


def _takes(one: Estimate) -> str:
    cost = f" and costs {dollars(one.dollars.value)}" if math.isfinite(one.dollars.value) else ""
    return f"takes {_hours(one.hours.value)}{cost}"


def _limit(hours: float) -> str:
    return time_taken(hours * HOUR_S) if hours < MOST_HOURS else f"{hours:,.10g} h"


def _hours(hours: float) -> str:
    return time_taken(hours * HOUR_S)


def _last(figure: float) -> float:
    return figure if math.isfinite(figure) else math.inf
