"""Which of many points a chart draws, chosen by DuckDB: a browser that gets a million of them stands still."""

from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

MOST_POINTS = 20_000

Rows = npt.NDArray[np.int64]

_EXTREMES = """
    WITH spans AS (
        SELECT part, count(*) AS num, min(x) AS first, nullif(max(x) - min(x), 0) AS span FROM points GROUP BY part
    ),
    placed AS (
        SELECT place, y, part, CASE WHEN num <= $share THEN place
            ELSE least(floor(coalesce((x - first) / span, 0) * ($share // 2)), $share // 2 - 1) END AS field
        FROM points JOIN spans USING (part)
    )
    SELECT unnest([arg_min(place, y), arg_max(place, y)]) AS place FROM placed GROUP BY part, field"""
_RANKS = """
    SELECT place FROM (
        SELECT place, row_number() OVER (PARTITION BY part ORDER BY y, place) - 1 AS rank,
            count(*) OVER (PARTITION BY part) AS num
        FROM points
    )
    WHERE num <= $share OR rank = 0 OR rank * ($share - 1) // (num - 1) > (rank - 1) * ($share - 1) // (num - 1)"""


def extremes(x: npt.ArrayLike, y: npt.ArrayLike, parts: npt.ArrayLike = 0, most: int = MOST_POINTS) -> Rows:
    """Indices of at most `most` of the points, ascending: of each part the lowest and the highest in each field of x.

    The fields of a part are equally wide, so what is drawn has the outline of all points. x, y: shape (n,), what is not
    finite is left out. parts: a whole number for each point; every part has an equal share, and stays whole within it.
    """
    return _chosen(_EXTREMES, most, parts, x=x, y=y)


def ranks(y: npt.ArrayLike, parts: npt.ArrayLike = 0, most: int = MOST_POINTS) -> Rows:
    """As `extremes`, but of each part those at equal steps of rank by y: a box on them stays where it is."""
    return _chosen(_RANKS, most, parts, y=y)


def _chosen(query: str, most: int, parts: npt.ArrayLike, **columns: npt.ArrayLike) -> Rows:
    points = {name: np.asarray(values, np.float64) for name, values in columns.items()}
    places: Rows = np.flatnonzero(np.logical_and.reduce([np.isfinite(values) for values in points.values()]))
    if len(places) <= most:
        return places
    table: dict[str, Any] = {name: values[places] for name, values in points.items()}
    table |= {"part": np.broadcast_to(parts, len(points["y"]))[places].astype(np.int64), "place": places}
    share = max(most // len(np.unique(table["part"])), 2)
    with duckdb.connect(config={"python_enable_replacements": "false"}) as connection:
        connection.register("points", pa.table(table))
        found = connection.execute(query, {"share": share}).fetchnumpy()["place"]
    rows: Rows = np.unique(found)
    return rows
