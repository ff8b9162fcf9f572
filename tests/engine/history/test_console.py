"""SQL console: what a user's statements may do, and what is refused with its reason."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from engine.errors import ConfigError, EngineError, HistoryError, LimitExceeded
from engine.history import History
from engine.history.console import MOST_S, READY, Result
from engine.history.console_help import COMMENTS
from engine.history.console_sql import MOST_BYTES
from engine.reference import REFERENCE, reference_timings
from tests.engine.history.run_maker import make_run
from tests.engine.history.trial_maker import make_trial
from tests.processes import children
from tests.waiting import until


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """History with runs and trials, for tests that only read it."""
    with History.open(tmp_path_factory.mktemp("console") / "history.duckdb") as history:
        for _ in range(3):
            history.runs.keep(make_run(40, 4))
            history.record(make_trial(30, 4)).result()
        yield history


def test_rows_with_names_and_types(kept: History) -> None:
    result = kept.console.run("SELECT 1 AS one, 'a' AS letter, [1.5] AS list, NULL AS nothing")
    assert result.columns == ("one", "letter", "list", "nothing")
    assert result.types[:2] == ("INTEGER", "VARCHAR")
    assert result.table.to_pylist() == [{"one": 1, "letter": "a", "list": [1.5], "nothing": None}]
    assert (result.num_rows, result.is_truncated, result.why_truncated) == (1, False, "")
    assert result.elapsed_s > 0


def test_reference_timings_are_views_marked_with_their_source(kept: History) -> None:
    found = kept.console.run("SELECT * FROM reference_timings ORDER BY ALL")
    rows = [{**timing._asdict(), "origin": "reference"} for timing in reference_timings()]
    assert sorted(found.table.to_pylist(), key=repr) == sorted(rows, key=repr)
    assert kept.console.run("SELECT DISTINCT origin FROM reference_loads").table.to_pylist() == [{"origin": REFERENCE}]
    schema = kept.console.schema()["reference_timings"]
    assert tuple(column.name for column in schema) == found.columns
    assert tuple(column.type for column in schema) == found.types


@pytest.mark.parametrize(
    ("sql", "num_rows"),
    [
        ("SELECT * FROM samples", 120),
        ("SELECT * FROM samples;", 120),
        ("-- how many\nFROM runs", 3),
        ("VALUES (1), (2)", 2),
        ("WITH all_trials AS (SELECT * FROM trials) SELECT id FROM all_trials", 3),
        ("SELECT 'COMMIT; DROP TABLE runs' AS text", 1),
        ("SELECT * FROM runs WHERE false", 0),
        ("SELECT a.range, b.range FROM range(3) a CROSS JOIN range(2) b", 6),
        ("SELECT * FROM range(10) a, range(10) b", 100),
        ("SELECT * FROM (SELECT 1, 2) AS x, range(2) AS b CROSS JOIN range(3) c, generate_series(1, 2) d", 12),
        ("SELECT * FROM main.runs r, /* so */ range(0)", 0),
        ("FROM range(2) a, range(3) b", 6),
        ("SELECT 'repeat(1)', 2 /* range(5) */ -- lpad(3)", 1),
        ("SELECT unnest([1, 2, 3])", 3),
        ("PIVOT (SELECT cell, round FROM samples) ON cell USING count(*)", 10),
        ("FROM (PIVOT (SELECT cell, round FROM samples) ON cell USING count(*)) LIMIT 2", 2),
        ("UNPIVOT (SELECT 1 AS a, 2 AS b) ON a, b", 2),
        ("SELECT unnest(range(3))", 3),
        ("SELECT len(repeat('x', 3))", 1),
        ("FROM query('SELECT 1')", 1),
        ("FROM test_all_types()", 3),
    ],
)
def test_what_reads_is_run(kept: History, sql: str, num_rows: int) -> None:
    assert kept.console.run(sql, timeout_s=MOST_S).num_rows == num_rows


@pytest.mark.parametrize("sql", ["EXPLAIN SELECT * FROM runs", "DESCRIBE runs", "SUMMARIZE cells", "SHOW TABLES"])
def test_explanations_are_results_too(kept: History, sql: str) -> None:
    assert kept.console.run(sql).num_rows > 0


@pytest.mark.parametrize("ready", READY, ids=lambda ready: ready.name)
def test_ready_queries_run_and_find_something(kept: History, ready: tuple[str, str]) -> None:
    result = kept.console.run(ready[1])
    assert result.num_rows > 0
    assert not any(column.null_count == len(column) for column in result.table.columns)


def test_every_table_is_in_the_schema(kept: History) -> None:
    schema = kept.console.schema()
    assert {"runs", "cells", "samples", "trials", "steps", "tokenizers", "marks"} <= schema.keys()
    (speed,) = [column for column in schema["samples"] if column.name == "tokens_per_s"]
    assert speed.type == "DOUBLE"
    assert "tok/s" in speed.comment


def test_every_comment_is_of_a_column_that_is_there(kept: History) -> None:
    there = {(table, column.name) for table, columns in kept.console.schema().items() for column in columns}
    assert COMMENTS.keys() - there == set()


# What is refused


WRITES = (
    "DELETE FROM runs",
    "UPDATE runs SET name = 'x'",
    "INSERT INTO plans VALUES ('a', now()::TIMESTAMP, '{}')",
    "CREATE TABLE mine (a INTEGER)",
    "CREATE TEMP TABLE mine (a INTEGER)",
    "DROP TABLE runs",
    "ALTER TABLE runs ADD COLUMN a INTEGER",
    "MERGE INTO runs USING trials ON false WHEN MATCHED THEN DELETE",
    "WITH gone AS (DELETE FROM runs RETURNING *) SELECT * FROM gone",
    "WITH new AS (INSERT INTO plans VALUES ('a', now()::TIMESTAMP, '{}') RETURNING *) SELECT * FROM new",
    "EXPLAIN ANALYZE DELETE FROM runs",
    "VACUUM",
    "CHECKPOINT",
    "SELECT * FROM force_checkpoint()",
)
REACHES = (
    "ATTACH '{other}' AS other",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM read_parquet('/etc/passwd')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM '/etc/passwd.csv'",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "COPY runs TO '{other}'",
    "COPY (SELECT 1) TO '{other}'",
    "EXPORT DATABASE '{other}'",
    "IMPORT DATABASE '{other}'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "PRAGMA database_list",
    "PRAGMA enable_profiling",
    "SET memory_limit = '100GB'",
    "RESET memory_limit",
    "USE memory",
    "CALL pragma_version()",
    "SELECT * FROM enable_logging()",
    "SELECT * FROM enable_profiling()",
    "PREPARE mine AS SELECT 1",
    "SET VARIABLE mine = 1",
    "SELECT * FROM kept",
    "DETACH history",
    "SELECT * FROM read_text('{other}')",
    "SELECT * FROM query('COPY runs TO ''{other}''')",
    "WITH x AS (COPY runs TO '{other}') SELECT 1",
    "WITH x AS (COPY (SELECT 1) TO '{home}/snapshots/x.csv') SELECT 1",
    "EXPLAIN ANALYZE COPY runs TO '{other}'",
    "COPY (PIVOT runs ON name USING count(*)) TO '{other}'",
    "CALL enable_profiling(save_location='{other}')",
    "CALL enable_logging(storage='file', storage_config={'path': '{other}'})",
    "SELECT * FROM read_duckdb('{home}/history.duckdb')",
    "SELECT * FROM arrow_scan()",
    "SELECT getenv('HOME')",
    "FROM duckdb_secrets()",
    "UPDATE EXTENSIONS",
    "CONNECT 'x'",
)
SEVERAL = (
    "SELECT 1; SELECT 2",
    "COMMIT; DROP TABLE runs",
    "SELECT 1; COMMIT; DROP TABLE runs; BEGIN",
    "COMMIT",
    "ROLLBACK",
    "BEGIN",
    "",
    " ; ",
    "-- nothing",
)
WRONG = (
    "SELEC 1",
    "SELECT nowhere FROM runs",
    "SELECT * FROM nowhere",
    "SELECT ?",
    "SELECT $a",
    "SELECT 1/0::INT; x",
    "\0",
    "SELECT '\ud800'",
)


@pytest.fixture(scope="module")
def snapshots(kept: History) -> Path:
    """A folder beside the history that DuckDB was once allowed to write to."""
    folder = kept.path.parent / "snapshots"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("sql", [*WRITES, *REACHES, *SEVERAL, *WRONG])
def test_what_does_more_than_read_is_refused(kept: History, snapshots: Path, sql: str, tmp_path: Path) -> None:
    before, home = counts(kept), kept.path.parent
    with pytest.raises(ConfigError) as caught:
        kept.console.run(sql.replace("{other}", str(tmp_path / "other")).replace("{home}", str(home)))
    assert str(caught.value)
    assert counts(kept) == before
    assert [*tmp_path.iterdir(), *snapshots.iterdir()] == []


def counts(history: History) -> list[tuple[int, ...]]:
    tables = ("runs", "cells", "samples", "trials", "steps", "plans")
    with history.file.reading() as cursor:
        return [cursor.execute(f"SELECT count(*) FROM {table}").fetchall()[0] for table in tables]


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM range(1000000000000)",
        "WITH RECURSIVE endless AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM endless) SELECT max(n) FROM endless",
        "SELECT sum(a.ttft_s * b.ttft_s) FROM samples a, samples b, samples c, samples d, samples e",
        "SELECT max(md5(range::VARCHAR)) FROM range(1000000000)",
    ],
)
def test_what_never_ends_is_stopped(kept: History, sql: str) -> None:
    with pytest.raises(LimitExceeded, match="longer than 0.3 s"):
        kept.console.run(sql, timeout_s=0.3)
    assert kept.console.run("SELECT 1").num_rows == 1


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM samples a, samples b, samples c, samples d",
        "SELECT * FROM range(100000000)",
    ],
)
def test_what_returns_everything_is_cut(kept: History, sql: str) -> None:
    result = kept.console.run(sql)
    assert 0 < result.num_rows <= 10_000
    assert result.is_truncated
    assert f"{result.num_rows:,}" in result.why_truncated
    assert result.table.nbytes <= MOST_BYTES


A_MEGABYTE = "SELECT string_agg(md5(range::VARCHAR), '') AS text FROM range(31250)"


def test_large_values_are_cut_by_their_bytes(kept: History) -> None:
    result = kept.console.run(f"SELECT range AS n, text FROM range(100) CROSS JOIN ({A_MEGABYTE}) ORDER BY n")
    assert 10 <= result.num_rows <= 20
    assert "20 MB" in result.why_truncated
    assert result.table["n"].to_pylist() == list(range(result.num_rows))


def test_one_value_that_is_too_large_alone(kept: History) -> None:
    result = kept.console.run("SELECT string_agg(md5(range::VARCHAR), '') AS text FROM range(1000000)")
    assert (result.num_rows, result.is_truncated) == (0, True)
    assert "20 MB" in result.why_truncated


ODD = {
    "interval": "INTERVAL 1 DAY", "union": "union_value(num := 2)", "map": "MAP {'a': 1}", "list": "[1, 2]",
    "list of unions": "[union_value(num := 2)]", "struct of intervals": "{'x': INTERVAL 1 MONTH}", "bits": "'101'::BIT",
    "hugeint": "170141183460469231731687303715884105727::HUGEINT", "uuid": "uuid()", "time": "TIME '10:00'",
    "time with zone": "'10:00:00+02'::TIMETZ", "nanoseconds": "'2024-01-01'::TIMESTAMP_NS",
    "enum": "'x'::ENUM('x', 'y')", "blob": "'\\xFF'::BLOB", "null": "NULL", "array": "[1, 2]::INTEGER[2]",
    "decimal": "1.5::DECIMAL(38, 10)", "nan": "'nan'::DOUBLE", "bignum": "1::BIGNUM",
}  # fmt: skip


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_values_of_every_type_reach_files(kept: History, value: str, tmp_path: Path) -> None:
    twice = kept.console.run(f"""SELECT 1 AS "a ""b", {value} AS "a ""b" """)
    assert twice.columns == ('a "b', 'a "b')
    found = kept.console.run(f"SELECT 1 AS a, {value} AS b")
    assert len(found.table.to_pandas()) == 1
    pq.write_table(found.table, tmp_path / "found.parquet")
    assert pq.read_table(tmp_path / "found.parquet").num_rows == 1


@pytest.mark.parametrize(
    "value",
    [
        "'infinity'::DATE",
        "'-infinity'::TIMESTAMP",
        "'290000-01-01'::DATE",
        "'infinity'::TIMESTAMPTZ",
        "[DATE '20000-1-1']",
    ],
)
def test_dates_beyond_the_range_of_python_are_text(kept: History, value: str, tmp_path: Path) -> None:
    found = kept.console.run(f"SELECT 1, {value} AS odd, DATE '2024-02-29' AS day FROM range(5000)", limit=4000)
    (text,) = kept.console.run(f"SELECT ({value})::VARCHAR AS odd").table["odd"].to_pylist()
    assert set(found.table["odd"].to_pylist()) == {text}
    assert set(found.table["day"].to_pylist()) == {date(2024, 2, 29)}
    assert found.num_rows == 4000
    pq.write_table(found.table, tmp_path / "found.parquet")


def test_the_limit_is_exact(kept: History) -> None:
    whole: Result = kept.console.run("SELECT * FROM range(10)", limit=10)
    assert (whole.num_rows, whole.is_truncated) == (10, False)
    cut = kept.console.run("SELECT * FROM range(11)", limit=10)
    assert (cut.num_rows, cut.is_truncated) == (10, True)


@pytest.mark.slow
def test_too_much_memory_is_refused(kept: History) -> None:
    with pytest.raises(LimitExceeded, match="memory"):
        kept.console.run("SELECT list(range) FROM range(10000000000)", timeout_s=60)
    assert kept.console.run("SELECT 1").num_rows == 1


@pytest.mark.parametrize("arguments", [{"limit": 0}, {"limit": 10_001}, {"timeout_s": 0}, {"timeout_s": float("nan")}])
def test_bounds_have_bounds(kept: History, arguments: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        kept.console.run("SELECT 1", **arguments)  # type: ignore[arg-type]


@pytest.mark.slow
def test_writing_goes_on_beside_a_query_that_takes_its_time(history: History) -> None:
    failures: list[str] = []

    def ask() -> None:
        try:
            history.console.run("SELECT count(*) FROM range(1000000000000)", timeout_s=1)
        except LimitExceeded as error:
            failures.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(5):
        assert history.runs.keep(make_run(10))
    asking.join()
    assert len(failures) == 1
    assert len(history.runs.recent()) == 5


def test_queries_at_the_same_time_do_not_disturb_each_other(kept: History) -> None:
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(kept.console.run(f"SELECT * FROM range({n})").num_rows))
        for n in (10, 20, 30, 40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [10, 20, 30, 40]


# The end


def test_after_the_end_it_says_so(path: Path) -> None:
    history = History.open(path)
    history.console.run("SELECT 1")
    history.close()
    history.close()
    with pytest.raises(HistoryError, match="closed"):
        history.console.run("SELECT 1")


@pytest.mark.slow
def test_the_end_does_not_wait_for_a_question(path: Path) -> None:
    before = children()
    with History.open(path) as history, ThreadPoolExecutor(1) as asking:
        history.console.run("SELECT 1")
        (child,) = children() - before
        question = asking.submit(history.console.run, "SELECT count(*) FROM range(1000000000000)", timeout_s=60)
        until(lambda: child.cpu_percent(0.1) > 20, "the question never began")
        history.close()
        with pytest.raises(EngineError):
            question.result(60)
    assert not child.is_running()
