"""Downsampling: selects the points that a chart draws, in DuckDB. A browser hangs on a million points."""

from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
    """Return ascending indices of at most `most` points: of each part, the minimum and maximum of y in each bin of x.

    The bins of a part are equally wide, so the drawn points have the outline of all points. x, y: shape (n,); points
    that are not finite are left out. parts: a whole number for each point; every part gets an equal share of `most`,
    and a part that fits within its share is returned whole.
    """
    return _chosen(_EXTREMES, most, parts, x=x, y=y)


def ranks(y: npt.ArrayLike, parts: npt.ArrayLike = 0, most: int = MOST_POINTS) -> Rows:
    """As `extremes`, but select the points of each part at equal steps of rank by y, which preserves a box plot."""
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
