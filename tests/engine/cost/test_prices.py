import math

import pytest

from engine.cost import PRICE_FIELDS, Price, price_from_row, prices_for, read_prices, write_prices
from engine.errors import ConfigError

HEAD = "machine,usd_per_h\n"


def test_a_table_comes_back_as_it_went() -> None:
    prices = (
        Price(machine="c7i.xlarge", region="eu-west-1", usd_per_h=0.1785, dated="2024-05", source="note, A"),
        Price(machine="desk", kind="own", power_w=180, usd_per_kwh=0.3, purchase_usd=1200, lifetime_h=20_000),
        Price(machine="=cmd()", usd_per_h=1),
    )
    text = write_prices(prices)
    assert text.splitlines()[0] == ",".join(PRICE_FIELDS)
    assert read_prices(text) == prices
    assert read_prices("\ufeff" + text) == prices


def test_an_own_machine_costs_power_and_its_share_of_the_purchase() -> None:
    price = Price(machine="desk", kind="own", power_w=200, usd_per_kwh=0.25, purchase_usd=1000, lifetime_h=10_000)
    assert price.hourly_usd == pytest.approx(0.05 + 0.1)
    assert Price(machine="desk", kind="own", power_w=200, usd_per_kwh=0.25).hourly_usd == pytest.approx(0.05)
    assert Price(machine="c7i", usd_per_h=0.7).hourly_usd == 0.7


def test_prices_of_a_machine_are_found_whatever_its_case_cheapest_first() -> None:
    prices = read_prices("machine,region,usd_per_h\nC7i,a,2\nc7i,b,1\nother,,3\n")
    assert [price.region for price in prices_for(" c7I ", prices)] == ["b", "a"]
    assert prices_for("unknown", prices) == []


def test_a_row_of_a_table_on_a_screen_may_have_holes() -> None:
    row = {"machine": "desk", "kind": "rented", "usd_per_h": "0.5", "power_w": math.nan, "region": None}
    assert price_from_row(row) == Price(machine="desk", usd_per_h=0.5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "line 1: the columns"),
        ("name,price\nx,1\n", "line 1: .*'name' is not one"),
        ("machine,machine\nx,x\n", "each only once"),
        (HEAD + "x,\n", "line 2: usd_per_h of x is missing"),
        (HEAD + "x,1\ny,-1\n", "line 3: usd_per_h = -1"),
        (HEAD + "x,0\n", "line 2: usd_per_h = 0"),
        (HEAD + "x,1e9\n", "line 2: usd_per_h = 1000000000"),
        (HEAD + "x,inf\n", "line 2: usd_per_h = inf"),
        (HEAD + "x,nan\n", "line 2: usd_per_h = nan"),
        (HEAD + 'x,"1,5"\n', "line 2: usd_per_h = '1,5': must be a number"),
        (HEAD + ",1\n", "line 2: machine is empty"),
        (HEAD + "x,1,2\n", "line 2: has more fields"),
        (HEAD + "x,1\nX,2\n", "X has two prices"),
        (HEAD + '"x,1\n', "line 2: not valid CSV"),
        ("machine,dated,usd_per_h\nx,yesterday,1\n", "line 2: dated"),
        ("machine,kind,usd_per_h\nx,stolen,1\n", "line 2: kind"),
        ("machine,kind,power_w\nx,own,5\n", "has only power_w"),
        ("machine,kind\nx,own\n", "x has no price"),
        ("machine,kind,usd_per_h,power_w,usd_per_kwh\nx,own,1,5,1\n", "follows from power"),
        ("machine,usd_per_h,power_w\nx,1,5\n", "has only usd_per_h"),
        ("machine,kind,power_w,usd_per_kwh\nx,own,-5,1\n", "power_w = -5"),
        ("machine,kind,purchase_usd,lifetime_h\nx,own,100,0\n", "lifetime_h = 0"),
        (HEAD + "x" * 201 + ",1\n", "200 characters"),
    ],
)
def test_wrong_prices_are_refused_with_their_line(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_prices(text)
