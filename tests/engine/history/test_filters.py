"""Filters: validated once, and restored unchanged from a URL."""

import math
from dataclasses import replace
from datetime import date, datetime
from typing import Any

import pytest

from engine.errors import ConfigError
from engine.history.filters import DATES, LISTS, SWITCHES, Filter

FULL = Filter(
    text="castle in the % _ air",
    models=("story-Q8_0", "odd, name: 50 %", "a%2Cb"),
    quantisations=("Q4_K_M",),
    machines=("ab12cd",),
    questions=("speed", "users"),
    origins=("measured", "box.zip"),
    statuses=("done",),
    tags=("paris", "à la nuit"),
    since=date(2026, 10, 1),
    until=date(2026, 11, 21),
    days=30,
    ranges={"n_ctx": (512, 4096), "temperature": (None, 0.7), "odd, name:": (-1.5, None), "tiny": (1e-9, 0.1)},
    is_starred=True,
    has_archived=True,
    only_archived=True,
)


def test_an_address_has_every_field_and_gives_them_back() -> None:
    query = FULL.to_query()
    assert set(query) == set(Filter.__dataclass_fields__)
    assert all(isinstance(value, str) for value in query.values())
    assert Filter.from_query(query) == FULL
    assert (query["ranges"][:15], query["since"], query["tags"]) == ("n_ctx:512..4096", "2026-10-01", "paris,à la nuit")


def test_an_empty_filter_has_an_empty_address() -> None:
    assert Filter().to_query() == {}
    assert Filter.from_query({}) == Filter()
    assert Filter.from_query({"view": "runs", "order": "best", "text": "", "models": ""}) == Filter()


def test_each_field_alone_survives_the_address() -> None:
    for name in Filter.__dataclass_fields__:
        alone = Filter(**{name: getattr(FULL, name)})
        assert list(alone.to_query()) == [name]
        assert Filter.from_query(alone.to_query()) == alone


def test_a_list_has_each_value_once_and_text_no_space_around_it() -> None:
    assert Filter(models=("a", "b", "a")).models == ("a", "b")
    assert Filter(models=["a"]).models == ("a",)  # type: ignore[arg-type]
    assert Filter(text="  two words ").text == "two words"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"since": "yesterday"}, "since"),
        ({"until": "2026-02-30"}, "until"),
        ({"since": "0001-01-01"}, "since"),
        ({"until": "9999-12-31"}, "until"),
        ({"since": "2026-11-21", "until": "2026-11-20"}, "since"),
        ({"days": "week"}, "days"),
        ({"days": "-1"}, "days"),
        ({"days": "36501"}, "days"),
        ({"days": "9" * 5000}, "days"),
        ({"is_starred": "maybe"}, "is_starred"),
        ({"models": "a,,b"}, "models"),
        ({"ranges": "n_ctx"}, "ranges"),
        ({"ranges": "n_ctx:512"}, "ranges"),
        ({"ranges": ":1..2"}, "ranges"),
        ({"ranges": "n_ctx:.."}, "ranges"),
        ({"ranges": "n_ctx:a..b"}, "ranges"),
        ({"ranges": "n_ctx:2..1"}, "ranges"),
        ({"ranges": "n_ctx:nan..1"}, "ranges"),
        ({"ranges": "n_ctx:0..1e999"}, "ranges"),
        ({"text": "a" * 1001}, "text"),
        ({"models": ",".join(map(str, range(201)))}, "models"),
        ({"ranges": ",".join(f"r{number}:1.." for number in range(201))}, "ranges"),
        ({"text": "\udcff"}, "text"),
    ],
)
def test_a_bad_address_names_its_field(query: dict[str, str], field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}"):
        Filter.from_query(query)


@pytest.mark.parametrize(
    "values",
    [
        {"models": "story"},
        {"models": (1,)},
        {"since": datetime(2026, 11, 21)},
        {"since": "2026-11-21"},
        {"is_starred": "yes"},
        {"ranges": {"n_ctx": (None, None)}},
        {"ranges": {"n_ctx": (math.inf, None)}},
        {"ranges": {"n_ctx": (10**400, None)}},
        {"ranges": {"n_ctx": ("512", None)}},
        {"ranges": {"n_ctx": (True, None)}},
        {"mood": "calm"},
    ],
)
def test_what_is_no_filter_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Filter(**values)


def test_the_kinds_of_fields_are_all_of_them() -> None:
    assert {"text", "days", "ranges", *LISTS, *DATES, *SWITCHES} == set(Filter.__dataclass_fields__)
    assert replace(FULL, text="") != FULL
