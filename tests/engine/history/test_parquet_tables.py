"""Parquet files with a damaged footer: read or refused, without ending the process."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.history.parquet_tables import ParquetTable


@pytest.mark.slow
@pytest.mark.parametrize("change", [0x01, 0x10], ids=["next value", "next length"])
def test_any_changed_byte_of_a_footer_is_refused_or_read(tmp_path: Path, change: int) -> None:
    file = tmp_path / "table.parquet"
    pq.write_table(pa.table({"a": [1, None, 2]}), file)
    content = file.read_bytes()
    end = len(content) - 8
    num_refused = 0
    for place in range(end - int.from_bytes(content[end : end + 4], "little"), end):
        changed = bytearray(content)
        changed[place] = (changed[place] + change) % 256
        file.write_bytes(changed)
        try:
            with file.open("rb") as opened:
                table = ParquetTable(opened, most_rows=10)
            assert sum(piece.num_rows for piece in table.pieces({"a": None})) <= 10
        except (ValueError, OSError, pa.ArrowException):
            num_refused += 1
    assert num_refused > 50
