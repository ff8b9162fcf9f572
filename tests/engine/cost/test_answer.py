import math
from collections.abc import Sequence
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.cost import CostJob, Estimate, Price, answer, answer_here, best_by_machine, estimate, fastest_first
from engine.errors import ConfigError
from tests.engine.cost.maker import make_rate, speed

JOB = CostJob(documents=1, tokens_per_document=36_000, output_tokens=0)


def on(machine: str, per_s: float, usd_per_h: float | None, **changes: Any) -> Estimate:
    """Return the estimate for 36,000 tokens, which take 10 / per_s hours."""
    price = None if usd_per_h is None else Price(machine=machine, usd_per_h=usd_per_h)
    return estimate(JOB, make_rate(machine, per_s, **changes), price, counted_as="notes")


FAST, MIDDLE, SLOW = on("fast", 10, 1.2), on("middle", 5, 0.5), on("slow", 1, 0.05)
THREE = (SLOW, FAST, MIDDLE)
ABOVE_ZERO = st.floats(0, exclude_min=True, allow_infinity=False)


@pytest.mark.parametrize(
    ("goals", "machine", "sentence"),
    [
        ({}, "fast", "fast finishes 9 h sooner than slow for $0.70 more."),
        ({"deadline_h": 3}, "middle", "middle takes 2 h and costs $1.00: the cheapest that finishes within 3 h."),
        ({"deadline_h": 20}, "slow", "slow takes 10 h and costs $0.50: the cheapest that finishes within 20 h."),
        (
            {"deadline_h": 0.5},
            None,
            "Nothing finishes within 30 min: the fastest, fast, takes 1 h and costs $1.20. "
            "Allow 30 min more, or split the documents between 2 of them.",
        ),
        ({"budget_usd": 1.1}, "middle", "middle takes 2 h and costs $1.00: the fastest for at most $1.10."),
        ({"budget_usd": 0.1}, None, "Nothing costs $0.10 or less: the cheapest, slow, takes 10 h and costs $0.50."),
        ({"deadline_h": 3, "budget_usd": 1.1}, "middle", "within 3 h for at most $1.10."),
        (
            {"deadline_h": 1.5, "budget_usd": 1.1},
            None,
            "Nothing finishes within 1 h 30 min for at most $1.10: the cheapest in that time, fast, takes 1 h and "
            "costs $1.20; the fastest for that money, middle, takes 2 h and costs $1.00.",
        ),
        (
            {"deadline_h": 1.5, "budget_usd": 0.1},
            None,
            "Nothing finishes within 1 h 30 min for at most $0.10: the cheapest in that time, fast, takes 1 h and "
            "costs $1.20.",
        ),
        (
            {"deadline_h": 5000, "budget_usd": 0.1},
            None,
            "Nothing finishes within 208 days 8 h for at most $0.10: the cheapest, slow, takes 10 h and costs $0.50.",
        ),
        (
            {"deadline_h": 0.5, "budget_usd": 1.1},
            None,
            "Nothing finishes within 30 min: the fastest for at most $1.10, middle, takes 2 h and costs $1.00. "
            "Allow 1 h 30 min more, or split the documents between 4 of them.",
        ),
        (
            {"deadline_h": 0.5, "budget_usd": 2},
            None,
            "Nothing finishes within 30 min: the fastest, fast, takes 1 h and costs $1.20. "
            "Allow 30 min more, or split the documents between 2 of them.",
        ),
        (
            {"deadline_h": 0.5, "budget_usd": 0.1},
            None,
            "Nothing finishes within 30 min or costs $0.10 or less: the fastest, fast, takes 1 h and costs $1.20; "
            "the cheapest, slow, takes 10 h and costs $0.50.",
        ),
    ],
)
def test_goals(goals: dict[str, float], machine: str | None, sentence: str) -> None:
    answered = answer(THREE, **goals)
    assert answered.sentence.endswith(sentence) or answered.sentence.startswith(sentence)
    assert (answered.chosen and answered.chosen.rate.machine) == machine


@given(ABOVE_ZERO, ABOVE_ZERO)
@example(5e-324, 1e308)
def test_any_goal_above_zero_has_an_answer(deadline_h: float, budget_usd: float) -> None:
    for goals in ({"deadline_h": deadline_h}, {"budget_usd": budget_usd}):
        assert answer(THREE, **goals).sentence
    assert answer(THREE, deadline_h=deadline_h, budget_usd=budget_usd).sentence


def test_one_that_is_both_says_so() -> None:
    assert answer([FAST, on("dear", 5, 9)]).sentence == "fast takes 1 h and costs $1.20: the fastest and the cheapest."
    assert answer([FAST]).sentence == "fast takes 1 h and costs $1.20."


@pytest.mark.parametrize("goals", [{"deadline_h": 0}, {"deadline_h": math.nan}, {"budget_usd": -1}])
def test_goals_are_above_zero(goals: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be above 0"):
        answer(THREE, **goals)


def test_intervals_that_overlap_are_reported() -> None:
    near = [on("one", 10, 1, generation=speed(10, 7, 13)), on("other", 9, 0.5, generation=speed(9, 6, 12))]
    assert answer(near).sentence.endswith("more, though their intervals overlap.")


def test_an_interval_past_the_deadline_is_reported() -> None:
    answered = answer([on("noisy", 10, 1, generation=speed(10, 5, 12))], deadline_h=1.5)
    assert answered.sentence.endswith("within 1 h 30 min, though its interval reaches 2 h.")


def test_machines_without_a_price_take_part_where_time_is_asked() -> None:
    free = on("home", 20, None)
    assert answer([free]).sentence == "home takes 30 min; no machine here has a price."
    assert answer([free, FAST]).sentence == "fast takes 1 h and costs $1.20."
    answered = answer([free, SLOW], deadline_h=1)
    assert answered.sentence == "home takes 30 min; no machine that finishes within 1 h has a price."
    assert answered.chosen is free
    assert answer([free, FAST], deadline_h=2).chosen is FAST
    assert answer([free], budget_usd=5).chosen is None
    assert answer([free], deadline_h=1, budget_usd=5).chosen is None
    assert answer([free, SLOW], deadline_h=1, budget_usd=0.1).sentence == (
        "Nothing finishes within 1 h for at most $0.10: the cheapest, slow, takes 10 h and costs $0.50."
    )


def test_a_machine_with_a_price_and_no_known_time_is_not_said_to_have_none() -> None:
    free, unknown = on("home", 20, None), estimate(JOB, make_rate("noted", 10), Price(machine="noted", usd_per_h=1))
    assert answer([free, unknown]).sentence == "home takes 30 min; no machine whose time is known has a price."
    assert answer([free, unknown], budget_usd=5).sentence == (
        "No machine whose time is known has a price, so a budget cannot be checked. "
        "noted takes at most 1 h and costs at most $1.00: the prefill speed is unknown."
    )
    assert answer([free], budget_usd=5).sentence.endswith("a budget cannot be checked. Add prices to the table.")


def test_what_cannot_be_answered_says_why() -> None:
    unknown = estimate(JOB, make_rate("noted", 10), Price(machine="noted", usd_per_h=1))
    assert answer([unknown]) == (
        "noted takes at most 1 h and costs at most $1.00: the prefill speed is unknown.",
        None,
    )
    assert answer([unknown, FAST]).chosen is FAST
    assert answer([]).chosen is None


@pytest.mark.parametrize(
    ("goals", "sentence"),
    [
        ({}, "quick takes at most 1 h and costs at most $1.20"),
        ({"deadline_h": 3}, "even takes at most 2 h and costs at most $1.00"),
        ({"budget_usd": 1.1}, "even takes at most 2 h and costs at most $1.00"),
        ({"deadline_h": 20}, "late takes at most 10 h and costs at most $0.50"),
        ({"deadline_h": 20, "budget_usd": 5}, "late takes at most 10 h and costs at most $0.50"),
        ({"deadline_h": 0.5}, "Nothing is certain to meet that. quick takes at most 1 h and costs at most $1.20"),
        ({"deadline_h": 3, "budget_usd": 0.6}, "Nothing is certain to meet that. late takes at most 10 h"),
        ({"deadline_h": 3, "budget_usd": 0.1}, "Nothing is certain to meet that. late takes at most 10 h"),
    ],
)
def test_bounds_answer_what_is_wanted(goals: dict[str, float], sentence: str) -> None:
    priced = (("quick", 10, 1.2), ("even", 5, 0.5), ("late", 1, 0.05))
    bounded = [estimate(JOB, make_rate(name, per_s), Price(machine=name, usd_per_h=usd)) for name, per_s, usd in priced]
    answered = answer(bounded, **goals)
    assert answered.sentence.startswith(sentence) and answered.sentence.endswith(": the prefill speed is unknown.")
    assert answered.chosen is None


def test_two_prices_or_settings_of_one_machine_are_told_apart() -> None:
    def priced(region: str, usd: float) -> Estimate:
        price = Price(machine="fast", region=region, usd_per_h=usd)
        return estimate(JOB, make_rate("fast", usd), price, counted_as="notes")

    assert answer([priced("east", 2), priced("west", 1)]).sentence.startswith("fast · east takes 5 h")
    two: Sequence[Estimate] = [on("fast", 10, 2), on("fast", 5, 0.5, label="1x4")]
    assert answer(two).sentence == "fast · 2x8 finishes 1 h sooner than fast · 1x4 for $1.00 more."


def test_this_machine_is_named_at_its_fastest() -> None:
    own = [on("attic", 1, 0.05, is_here=True), on("attic", 5, 0.05, is_here=True, label="2x4")]
    assert answer_here([FAST, *own]) == ("This machine takes 2 h and costs $0.10.", own[1])
    assert answer([FAST, own[1]]).sentence.startswith("fast finishes 1 h sooner than this machine")
    assert answer_here([on("attic", 20, None, is_here=True)]) == ("This machine takes 30 min.", ANY)
    assert answer_here(THREE) is None and answer_here([]) is None


def test_this_machine_without_a_prefill_speed_has_a_bound() -> None:
    unknown = estimate(JOB, make_rate("attic", 10, is_here=True), Price(machine="attic", usd_per_h=1))
    assert answer_here([unknown]) == (
        "This machine takes at most 1 h and costs at most $1.00: the prefill speed is unknown.", None,
    )  # fmt: skip


def test_order_and_best() -> None:
    unknown = estimate(JOB, make_rate("noted", 100))
    assert math.isnan(unknown.hours.value)
    assert fastest_first([unknown, *THREE]) == [FAST, MIDDLE, SLOW, unknown]
    rates = [make_rate("a", 1), make_rate("b", 3), make_rate("a", 2), make_rate("a", 1, model="other")]
    assert best_by_machine(rates) == [rates[2], rates[1], rates[3]]
