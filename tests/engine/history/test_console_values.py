"""Console results with values of every DuckDB type: every download format can write them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.commands.out_file import write_rows
from engine.history import History
from pages.parts.history.sql_view import as_csv, as_parquet

VALUES = [
    "NULL", "true", "1::TINYINT", "2::UTINYINT", "3::HUGEINT", "(1::UHUGEINT << 127)", "1.5::FLOAT", "'nan'::DOUBLE",
    "1.25::DECIMAL(38, 10)", "'a'", "'\\x00\\xff'::BLOB", "'101'::BIT", "uuid()",
    "DATE '2026-11-23'", "DATE 'infinity'",
    "TIME '12:00:00'", "TIME '24:00:00'", "'24:00:00+01'::TIMETZ", "TIMESTAMP '2026-11-23 12:00:00'",
    "'2026-11-23 12:00:00'::TIMESTAMP_NS", "'2026-11-23 12:00:00'::TIMESTAMP_S", "'infinity'::TIMESTAMP",
    "TIMESTAMPTZ '2026-11-23 12:00:00+02'", "INTERVAL '1 month'", "'x'::ENUM('x', 'y')", "'{\"a\": 1}'::JSON",
    "123456789012345678901234567890::BIGNUM", "MAP{}", "[]", "MAP{'a': 1}", "{'a': 1, 'b': 'x'}", "[1, 2]::INTEGER[2]",
    "union_value(num := 1)", "12::VARIANT",
]  # fmt: skip


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    with History.open(tmp_path_factory.mktemp("history") / "history.duckdb") as opened:
        yield opened


@pytest.mark.parametrize(
    "wrapped", ["{}", "[{}]", "{{'a': {}}}", "MAP{{'k': {}}}"], ids=["plain", "list", "struct", "map"]
)
@pytest.mark.parametrize("value", VALUES)
def test_a_value_of_any_type_can_be_taken_away(history: History, tmp_path: Path, value: str, wrapped: str) -> None:
    found = history.console.run(f"SELECT {wrapped.format(value)} AS value", timeout_s=60)
    assert found.num_rows == 1
    assert as_csv(found.table).startswith(b"value\r\n")
    assert as_parquet(found.table).startswith(b"PAR1")
    for ending in ("csv", "json", "parquet"):
        write_rows(tmp_path / f"answer.{ending}", found.table)
        assert (tmp_path / f"answer.{ending}").stat().st_size > 0
