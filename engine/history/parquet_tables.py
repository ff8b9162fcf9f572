"""Parquet reader for untrusted files, in pieces and within bounds.

A few bytes of a file may expand to gigabytes: a dictionary with one long text, a run of one number in a list. The
uncompressed size of a column is therefore computed from the metadata, and texts are read as dictionaries, whose entries
are measured before they are expanded into rows. Column metadata is read by DuckDB: pyarrow terminates the process on
damaged metadata, through an uncaught C++ exception.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import IO

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MOST_COLUMNS = 1_000
MOST_GROUP_BYTES = 512 << 20  # maximum uncompressed size of one row group
LONGEST_TEXT = 4_096
ROWS_AT_ONCE = 8_192
"""Rows per piece of a table: 8,192 steps with 256 candidates are about 20 MB."""

_GROUPS = """
    SELECT row_group_id, sum(total_uncompressed_size), max(num_values), max(row_group_num_rows)
    FROM parquet_metadata(?) GROUP BY row_group_id ORDER BY row_group_id
"""

CODED = pa.dictionary(pa.int32(), pa.string())
"""Dictionary-encoded text: each text is stored once, and rows have its index."""


class ParquetTable:
    """One open Parquet file; raises ValueError or pyarrow's errors for one that cannot be read or exceeds the limits.

    The file needs no name, so that nothing of an unpacked copy remains when this process is killed. longest_list:
    maximum number of values in a list, on average over a row group.
    """

    def __init__(self, file: IO[bytes], *, most_rows: int, longest_list: int = 1) -> None:
        path = f"/dev/fd/{file.fileno()}"
        with pq.ParquetFile(path) as table:
            self.names: list[str] = table.schema_arrow.names
            self.num_rows: int = table.metadata.num_rows
            texts = [field.name for field in table.schema_arrow if _is_text(field.type)]
            _check_size(table.metadata, most_rows)
        _check_groups(path, longest_list)
        self._file = pq.ParquetFile(path, read_dictionary=texts)

    def pieces(self, types: Mapping[str, pa.DataType | None]) -> Iterator[pa.Table]:
        """Yield the rows of these columns in pieces, cast to `types`; None: numbers, texts or lists of numbers."""
        for batch in self._file.iter_batches(ROWS_AT_ONCE, columns=list(types)):
            yield pa.table({name: _column(name, batch[name], types[name]) for name in batch.schema.names})


def check_columns(names: list[str], known: Iterable[str], needed: Iterable[str]) -> None:
    """Raise ValueError where a column is unknown, missing or duplicated."""
    unknown, missing = set(names).difference(known), set(needed).difference(names)
    if unknown or missing or len(set(names)) != len(names):
        difference = (
            f"unknown: {', '.join(sorted(unknown)[:5]) or 'none'}; missing: {', '.join(sorted(missing)) or 'none'}"
        )
        raise ValueError(f"it has the wrong columns ({difference}) or a duplicate")


def _check_size(about: pq.FileMetaData, most_rows: int) -> None:
    if about.num_rows > most_rows:
        raise ValueError(f"it has {about.num_rows:,} rows; the limit is {most_rows:,}")
    if about.num_columns > MOST_COLUMNS:
        raise ValueError(f"it has {about.num_columns:,} columns; the limit is {MOST_COLUMNS:,}")


def _check_groups(path: str, longest_list: int) -> None:
    try:
        with duckdb.connect(config={"threads": 1}) as connection:
            groups = connection.execute(_GROUPS, [path]).fetchall()
    except duckdb.Error as error:
        raise ValueError(str(error)) from error
    for number, num_bytes, num_values, num_rows in groups:
        if num_bytes > MOST_GROUP_BYTES:
            raise ValueError(f"row group {number} unpacks to more than {MOST_GROUP_BYTES:,} bytes")
        if num_values > (num_rows + 1) * longest_list:
            raise ValueError(f"row group {number} has lists of more than {longest_list:,} values")


def _column(name: str, values: pa.Array, type: pa.DataType | None) -> pa.Array:
    """Return one column cast to its type; texts are expanded from their dictionary only if no entry is too long."""
    texts = values.dictionary if pa.types.is_dictionary(values.type) else values
    if _is_text(texts.type):
        longest = pc.max(pc.binary_length(texts)).as_py() or 0
        if longest > LONGEST_TEXT:
            raise ValueError(f"column {name[:100]!r} has a text of {longest:,} bytes; the limit is {LONGEST_TEXT:,}")
        if type == CODED:
            return values if texts is not values else values.dictionary_encode()
        return values.cast(type or pa.string())
    inner = values.type.value_type if _is_list(values.type) else values.type
    if not (pa.types.is_primitive(inner) or pa.types.is_null(inner)):
        raise ValueError(f"column {name[:100]!r} has an unsupported type: {str(values.type)[:100]}")
    return (
        values if type is None else values.cast(pa.string()).dictionary_encode() if type == CODED else values.cast(type)
    )


def _is_list(type: pa.DataType) -> bool:
    return bool(pa.types.is_list(type) or pa.types.is_large_list(type))


def _is_text(type: pa.DataType) -> bool:
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(is_kind(type) for is_kind in kinds)
