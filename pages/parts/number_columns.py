"""Numeric table columns: in the most readable unit, with as many decimals as are significant."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from engine.units import scale_of

if TYPE_CHECKING:
    import pandas

FINE = (", cosine", ", rank correlation")
"""Endings of headings whose figures differ only near 1."""


def scaled(label: str, unit: str, values: Sequence[float | None]) -> dict[str, list[float]]:
    """Return one column under its label and unit; empty if no row has a value."""
    column = alike(unit, {label: values})
    return column if any(map(math.isfinite, *column.values())) else {}


def alike(unit: str, columns: Mapping[str, Sequence[float | None]]) -> dict[str, list[float]]:
    """Return all columns in one unit, the most readable for the largest figure; one without figures stays, empty."""
    numbers = {name: [math.nan if value is None else float(value) for value in each] for name, each in columns.items()}
    known = [abs(value) for each in numbers.values() for value in each if math.isfinite(value)]
    scale = scale_of(unit, max(known, default=0.0))
    return {
        f"{name}, {scale.unit}" if scale.unit else name: [value * scale.factor for value in each]
        for name, each in numbers.items()
    }


def counts(*columns: str, help: str | None = None) -> dict[str, Any]:
    """Return the column configuration of whole numbers with thousands separators; help: of their headings."""
    return {column: st.column_config.NumberColumn(format="localized", help=help) for column in columns}


def formats(table: "Mapping[str, Sequence[Any]] | pandas.DataFrame", helps: Mapping[str, str]) -> dict[str, Any]:
    """Return the column configuration of a table; `helps` maps labels without unit to their headings' help."""
    config: dict[str, Any] = {}
    for column in table:
        help = helps.get(column.rsplit(", ", 1)[0])
        values = np.asarray(table[column])
        if values.dtype.kind == "f":
            largest = np.abs(values[np.isfinite(values)]).max(initial=0.0)
            decimals = 4 if column.endswith(FINE) else 0 if largest >= 100 else 1 if largest >= 10 else 2
            config[column] = st.column_config.NumberColumn(format=f"%,.{decimals}f", help=help)
        elif help:
            config[column] = st.column_config.Column(help=help)
    return config
