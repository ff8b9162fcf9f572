"""Parquet that was written anywhere, read in pieces and within bounds.

A few bytes of it may stand for gigabytes: a dictionary with one long text, a run of one number in a list. So what a
column unpacks to is reckoned from the metadata, and texts are read as dictionaries, whose entries are measured before
any row has its own.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

MOST_COLUMNS = 1_000
MOST_GROUP_BYTES = 512 << 20  # what one row group may be when it is unpacked
LONGEST_TEXT = 4_096
ROWS_AT_ONCE = 8_192
"""Of a table: 8,192 steps with 256 candidates are some 20 MB."""

CODED = pa.dictionary(pa.int32(), pa.string())
"""Texts each kept once, of which a row has the number."""


class ParquetTable:
    """One Parquet file; raises ValueError or pyarrow's errors for one that cannot be read, or has more than may be.

    longest_list: values that a list may have, on average over a row group.
    """

    def __init__(self, source: Any, *, most_rows: int, longest_list: int = 1) -> None:
        file = pq.ParquetFile(source)
        _check_size(file.metadata, most_rows, longest_list)
        self.names: list[str] = file.schema_arrow.names
        self.num_rows: int = file.metadata.num_rows
        texts = [field.name for field in file.schema_arrow if _is_text(field.type)]
        file.close()
        self._file = pq.ParquetFile(source, read_dictionary=texts)

    def pieces(self, types: Mapping[str, pa.DataType | None]) -> Iterator[pa.Table]:
        """The rows of these columns in pieces, each column in its type; None: numbers, texts, or lists of numbers."""
        for batch in self._file.iter_batches(ROWS_AT_ONCE, columns=list(types)):
            yield pa.table({name: _column(name, batch[name], types[name]) for name in batch.schema.names})


def check_columns(names: list[str], known: Iterable[str], needed: Iterable[str]) -> None:
    """Raise ValueError where a column is unknown, missing, or there twice."""
    unknown, missing = set(names).difference(known), set(needed).difference(names)
    if unknown or missing or len(set(names)) != len(names):
        told = f"unknown: {', '.join(sorted(unknown)[:5]) or 'none'}; missing: {', '.join(sorted(missing)) or 'none'}"
        raise ValueError(f"it has other columns than it should ({told}), or one twice")


def _check_size(about: pq.FileMetaData, most_rows: int, longest_list: int) -> None:
    if about.num_rows > most_rows:
        raise ValueError(f"it has {about.num_rows:,} rows; up to {most_rows:,} are read")
    if about.num_columns > MOST_COLUMNS:
        raise ValueError(f"it has {about.num_columns:,} columns; up to {MOST_COLUMNS:,} are read")
    for number in range(about.num_row_groups):
        group = about.row_group(number)
        columns = [group.column(place) for place in range(group.num_columns)]
        if sum(column.total_uncompressed_size for column in columns) > MOST_GROUP_BYTES:
            raise ValueError(f"row group {number} unpacks to more than {MOST_GROUP_BYTES:,} bytes")
        if any(column.num_values > (group.num_rows + 1) * longest_list for column in columns):
            raise ValueError(f"row group {number} has lists of more than {longest_list:,} values")


def _column(name: str, values: pa.Array, type: pa.DataType | None) -> pa.Array:
    """One column in its type; texts leave their dictionary only where none of its entries is too long."""
    texts = values.dictionary if pa.types.is_dictionary(values.type) else values
    if _is_text(texts.type):
        longest = pc.max(pc.binary_length(texts)).as_py() or 0
        if longest > LONGEST_TEXT:
            raise ValueError(f"column {name[:100]!r} has a text of {longest:,} bytes; up to {LONGEST_TEXT:,} are read")
        if type == CODED:
            return values if texts is not values else values.dictionary_encode()
        return values.cast(type or pa.string())
    inner = values.type.value_type if _is_list(values.type) else values.type
    if not (pa.types.is_primitive(inner) or pa.types.is_null(inner)):
        raise ValueError(f"column {name[:100]!r} has a type that is not read: {str(values.type)[:100]}")
    return (
        values if type is None else values.cast(pa.string()).dictionary_encode() if type == CODED else values.cast(type)
    )


def _is_list(type: pa.DataType) -> bool:
    return bool(pa.types.is_list(type) or pa.types.is_large_list(type))


def _is_text(type: pa.DataType) -> bool:
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(is_kind(type) for is_kind in kinds)
