"""Numbers as they are read."""

import math

import pytest

from engine.units import between, change, counted, digits, dollars, duration, percent, quantity


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (57.3456, "tok/s", "57.3 tok/s"),
        (1234.5, "tok/s", "1,234 tok/s"),
        (99.96, "tok/s", "100 tok/s"),
        (0.038, "s", "38.0 ms"),
        (1.5, "s", "1.50 s"),
        (1.2e9, "B", "1.20 GB"),
        (5e6, "B", "5.00 MB"),
        (0.97, "", "97.0 %"),
        (11.2, "h", "11.2 h"),
        (0.4, "h", "24.0 min"),
        (0.005, "h", "18.0 s"),
        (0.0, "1/s", "0 1/s"),
        (math.nan, "s", "–"),
    ],
)
def test_a_quantity_has_three_digits_and_the_unit_that_reads_best(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_both_ends_of_an_interval_share_a_unit() -> None:
    assert between(0.9, 1.1, "s") == "0.900 – 1.10 s"
    assert between(math.nan, 1.1, "s") == ""
    assert digits(-12.34) == "-12.3"


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (40.4, "40 s"), (360, "6 min"), (3600, "1 h"), (4800, "1 h 20 min")]
)
def test_a_duration_is_said_as_people_do(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_parts_and_changes_are_percentages() -> None:
    assert (percent(0.9), percent(0.1254, 1), percent(1)) == ("90 %", "12.5 %", "100 %")
    assert (change(0.3), change(-0.07), change(0)) == ("+30 %", "−7 %", "+0 %")


def test_one_of_a_thing_is_singular() -> None:
    assert (counted(1, "sample"), counted(1200, "sample")) == ("1 sample", "1,200 samples")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5.246, "$5.25"),
        (8, "$8.00"),
        (1234.5, "$1,234.50"),
        (0.00123, "$0.00123"),
        (0.099, "$0.0990"),
        (0, "$0.00"),
        (-2.75, "−$2.75"),
        (math.nan, "–"),
    ],
)
def test_money_has_cents_and_three_digits_below_them(value: float, text: str) -> None:
    assert dollars(value) == text
