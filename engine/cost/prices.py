"""Machine prices per hour: rented, or owned by power and purchase; read from and written to CSV."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from engine.csv_cells import escaped, unescaped
from engine.errors import ConfigError, quoted
from engine.validation import Spec

Kind = Literal["rented", "own"]
KINDS: tuple[Kind, ...] = ("rented", "own")

MOST_PRICES = 10_000
MOST_BYTES = 4 << 20
TEXT_CHARACTERS = 200

_OWN = ("power_w", "usd_per_kwh", "purchase_usd", "lifetime_h")
_DATE = re.compile(r"[0-9]{4}(-[0-9]{2}(-[0-9]{2})?)?")


@dataclass(frozen=True, kw_only=True)
class Price(Spec):
    """Hourly price of a machine.

    Rented: usd_per_h. Own: power_w × usd_per_kwh while it works, and purchase_usd spread over lifetime_h hours of work.
    dated: day, month or year (2024-05-31, 2024-05, 2024) of the price.
    """

    machine: str
    region: str = ""
    kind: Kind = "rented"
    usd_per_h: float | None = None
    power_w: float | None = None
    usd_per_kwh: float | None = None
    purchase_usd: float | None = None
    lifetime_h: float | None = None
    dated: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("machine", "region", "dated", "source"):
            self._text(name)
        if not self.machine:
            raise ConfigError("machine is empty: name the machine that has this price")
        if self.dated and not _DATE.fullmatch(self.dated):
            raise ConfigError(f"dated = {quoted(self.dated)}: must be a date such as 2024-05-31, 2024-05 or 2024")
        self._one_of("kind", KINDS)
        if self.kind == "rented":
            self._check_rented()
        else:
            self._check_own()

    def _check_rented(self) -> None:
        self._absent(*_OWN, why="a rented machine has only usd_per_h")
        if self.usd_per_h is None:
            raise ConfigError(f"usd_per_h of {self.machine} is missing: give its price per hour")
        self._real("usd_per_h", 0.0001, 100_000)

    def _check_own(self) -> None:
        self._absent("usd_per_h", why="the hourly price of an owned machine follows from power and purchase")
        for pair in (("power_w", "usd_per_kwh"), ("purchase_usd", "lifetime_h")):
            present = [name for name in pair if getattr(self, name) is not None]
            if len(present) == 1:
                raise ConfigError(f"{self.machine} has only {present[0]}: {' and '.join(pair)} belong together")
        if self.power_w is None and self.purchase_usd is None:
            raise ConfigError(
                f"{self.machine} has no price: give power_w and usd_per_kwh, or purchase_usd and lifetime_h"
            )
        for name, low, high in zip(_OWN, (0.1, 0.0001, 0.01, 1), (1e6, 100, 1e8, 1e6), strict=True):
            if getattr(self, name) is not None:
                self._real(name, low, high)

    def _text(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, str) or len(value) > TEXT_CHARACTERS:
            raise ConfigError(f"{name} = {str(value)[:40]!r}: must be text of up to {TEXT_CHARACTERS} characters")
        object.__setattr__(self, name, " ".join(value.split()))

    def _absent(self, *names: str, why: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise ConfigError(f"{name} of {self.machine} is given, but {why}: remove it, or change the kind")

    @property
    def hourly_usd(self) -> float:
        """Dollars per hour, rented or own."""
        if self.usd_per_h is not None:
            return self.usd_per_h
        power = (self.power_w or 0) / 1000 * (self.usd_per_kwh or 0)
        return power + (self.purchase_usd or 0) / (self.lifetime_h or 1)


PRICE_FIELDS = tuple(field.name for field in fields(Price))
"""Columns of a table of prices, in their order."""

_NUMBERS = ("usd_per_h", *_OWN)


def prices_for(machine: str, prices: Iterable[Price]) -> list[Price]:
    """Return the prices of a machine, one for each region that has one, the cheapest first."""
    name = machine.strip().casefold()
    return sorted((price for price in prices if price.machine.casefold() == name), key=lambda price: price.hourly_usd)


def read_prices(text: str) -> tuple[Price, ...]:
    """Read prices from a CSV whose first line names PRICE_FIELDS or some of them; an empty field is not set.

    Raises ConfigError, with the line for absent, negative and absurd prices and unknown columns, and without it for a
    machine and region that occur twice.
    """
    if len(text) > MOST_BYTES:
        raise ConfigError(f"the price table has {len(text):,} characters; the limit is {MOST_BYTES:,}")
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    prices: list[Price] = []
    try:
        _check_columns(reader.fieldnames)
        for row in reader:
            prices.append(_read(row, reader.line_num))
            if len(prices) > MOST_PRICES:
                raise ConfigError(f"the price table has more than {MOST_PRICES:,} prices")
    except csv.Error as error:
        raise ConfigError(f"line {reader.line_num + 1}: not valid CSV ({error})") from None
    check_unique(prices)
    return tuple(prices)


def write_prices(prices: Iterable[Price]) -> str:
    """Return the CSV that `read_prices` reads."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(PRICE_FIELDS)
    writer.writerows(["" if value is None else escaped(value) for value in vars(price).values()] for price in prices)
    return text.getvalue()


def price_from_row(row: Mapping[str, Any]) -> Price:
    """Return the price of a table row, given by column: None, NaN and empty texts are not set, numbers may be texts.

    Raises ConfigError.
    """
    values = {name: value for name, value in row.items() if not _is_nothing(value)}
    for name in _NUMBERS:
        if isinstance(values.get(name), str):
            values[name] = _number(name, values[name])
    return Price.from_dict({"machine": "", **values})


def check_unique(prices: Iterable[Price]) -> None:
    """Raise ConfigError where a machine has two prices in one region."""
    seen: set[tuple[str, str]] = set()
    for price in prices:
        key = price.machine.casefold(), price.region.casefold()
        if key in seen:
            place = f" in {price.region}" if price.region else ""
            raise ConfigError(f"{price.machine} has two prices{place}: keep one, or name their regions")
        seen.add(key)


def _check_columns(names: Sequence[str] | None) -> None:
    given = list(names or ())
    unknown = [name for name in given if name not in PRICE_FIELDS]
    if unknown or "machine" not in given or len(set(given)) != len(given):
        wrong = f"{unknown[0]!r:.60} is not one of them" if unknown else "machine is required, and each only once"
        raise ConfigError(f"line 1: the columns of a price table are {', '.join(PRICE_FIELDS)}; {wrong}")


def _read(row: dict[Any, Any], line: int) -> Price:
    if None in row:
        raise ConfigError(f"line {line}: has more fields than the first line")
    try:
        return price_from_row({name: unescaped(cell) if cell else cell for name, cell in row.items()})
    except ConfigError as error:
        raise ConfigError(f"line {line}: {error}") from None


def _is_nothing(value: Any) -> bool:
    return value is None or value != value or (isinstance(value, str) and not value.strip())


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{name} = {text!r:.60}: must be a number, with a point for decimals") from None
