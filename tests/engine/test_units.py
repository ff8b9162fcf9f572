"""Numbers formatted for people."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bench.analysis.wording import figure
from engine.samples import METRICS
from engine.stats import Interval
from engine.units import (
    between,
    change,
    cores,
    counted,
    digits,
    dollars,
    duration,
    exact,
    parameters,
    percent,
    quantity,
    scale_of,
    significant,
    time_taken,
)

ROOT = Path(__file__).parents[2]


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
        (0.0, "1/s", "0 per s"),
        (math.nan, "s", "–"),
    ],
)
def test_a_quantity_has_three_digits_and_the_unit_that_reads_best(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(7, "7"), (100_928, "101 K"), (5_878_000, "5.88 M"), (1_100_048_384, "1.10 B"), (540_000_000_000, "540 B")],
)
def test_a_number_of_parameters_is_never_none_of_them(number: int, text: str) -> None:
    assert parameters(number) == text


AD_HOC = re.compile(r"\{[^{}]*:[^{}]*\.\d+f\} ?(?:[kMGT]B|GFLOP|tok|B param|ktok|sentences|texts|per)")


def test_quantities_are_formatted_here_and_nowhere_else() -> None:
    assert AD_HOC.search('f"{rate:,.1f} tok/s"') and AD_HOC.search("f'{size / 1e9:6.1f} GB/s'")
    files = [*(ROOT / "engine").rglob("*.py"), *(ROOT / "pages").rglob("*.py")]
    found = [f"{file.name}: {one[0]}" for file in files for one in AD_HOC.finditer(file.read_text("utf-8"))]
    assert not found


def test_both_ends_of_an_interval_share_a_unit() -> None:
    assert between(0.9, 1.1, "s") == "0.900 – 1.10 s"
    assert between(0.0573, 1.35, "s", 0.47) == "57.3 – 1,350 ms"
    assert between(math.nan, 1.1, "s") == ""
    assert digits(-12.34) == "-12.3"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "1 s"),
        (0.2, "1 s"),
        (40.4, "40 s"),
        (360, "6 min"),
        (3600, "1 h"),
        (4800, "1 h 20 min"),
        (7795, "2 h 10 min"),
        (172_700, "47 h 58 min"),
        (172_800, "2 days"),
        (187_300, "2 days 4 h"),
        (4e7, "462 days 23 h"),
        (1e9, "11,574 days 2 h"),
        (math.nan, "–"),
    ],
)
def test_a_duration_is_said_as_people_do(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (40, "40 s"),
        (89.7, "90 s"),
        (90, "1 min 30 s"),
        (120.2, "2 min"),
        (599.6, "10 min"),
        (600, "10 min"),
        (7795, "2 h 10 min"),
    ],
)
def test_a_time_that_is_known_well_has_its_seconds(seconds: float, text: str) -> None:
    assert time_taken(seconds) == text


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


# Generated numbers

FIGURES = st.floats(0, 1e15) | st.floats(1e-12, 1.0)
UNITS = st.sampled_from(sorted({metric.unit for metric in METRICS} | {"h", "B"}))
EXPONENT = re.compile(r"\d[eE][+-]?\d")


@given(FIGURES, UNITS)
def test_no_number_has_an_exponent(value: float, unit: str) -> None:
    shown = [quantity(value, unit), digits(value), significant(value), exact(value), duration(value), cores(value)]
    shown += [percent(value), dollars(value), between(value / 2, value * 3, unit, value), change(value)]
    assert [text for text in shown if EXPONENT.search(text)] == []


@given(st.lists(FIGURES, min_size=3, max_size=3), UNITS)
def test_an_interval_is_in_the_unit_of_its_value(values: list[float], unit: str) -> None:
    low, value, high = sorted(values)
    wanted = scale_of(unit, value).unit
    assert quantity(value, unit).endswith(f" {wanted}")
    assert re.fullmatch(rf"[\d,.]+ – [\d,.]+ {re.escape(wanted)}", between(low, high, unit, value))
    assert figure(Interval(value, low, high, 9), unit).count(wanted) == 1


@given(st.integers(0, 10**9))
def test_one_is_never_many(number: int) -> None:
    assert counted(number, "token").endswith("tokens") == (number != 1)
    assert (cores(number).endswith("cores")) == (number != 1)


@given(st.floats(0, 1e7))
def test_nothing_takes_no_time(seconds: float) -> None:
    assert not duration(seconds).startswith("0")


@given(st.floats(1e-9, 1e9))
def test_significant_digits_are_kept_however_small(value: float) -> None:
    assert float(significant(value, 2).replace(",", "")) == pytest.approx(value, rel=0.051)


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_a_number_as_given_reads_back(value: float) -> None:
    assert float(exact(value).replace(",", "")) == value
