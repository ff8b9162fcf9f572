"""SQL of people: what it may do, and what is refused with its reason."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from engine.errors import ConfigError, HistoryError
from engine.history import History
from engine.history.console import MOST_BYTES, READY, Result
from engine.history.console_help import COMMENTS
from engine.history.console_limits import check_functions
from tests.engine.history.run_maker import make_run
from tests.engine.history.trial_maker import make_trial


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """A history with runs and trials, for tests that only read it."""
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
    ],
)
def test_what_reads_is_run(kept: History, sql: str, num_rows: int) -> None:
    assert kept.console.run(sql).num_rows == num_rows


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
    "SELECT * FROM checkpoint()",
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
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "SELECT * FROM truncate_duckdb_logs()",
    "SELECT * FROM read_text('{other}')",
)
UNBOUNDED = (
    "SELECT levenshtein(repeat('a', 100000), 'b')",
    "SELECT 'é', \"LEVENSHTEIN\" /* so */ ('a', 'b')",
    "SELECT repeat('x', 3000000000)",
    "SELECT sum(len(range(50000000))) FROM range(1000)",
    "SELECT unnest(generate_series(1, 50000000))",
    "EXPLAIN ANALYZE SELECT lpad('x', 2000000000, 'y')",
    "SELECT 1 IN (SELECT x FROM (SELECT range (9000000000) AS x))",
    "SELECT [1] IS DISTINCT FROM range(9000000000)",
    "SELECT 1 IS NOT DISTINCT FROM 2, range(9000000000)",
    "SELECT trim(FROM range(9000000000)::VARCHAR)",
    "SELECT trim(BOTH 'a' FROM 'b', range(9000000000)::VARCHAR)",
    "SELECT 1 FROM range(3) a ORDER BY a.range, range(9000000000)",
    "SELECT 1 FROM range(3) a GROUP BY ALL LIMIT 1, range(9000000000)",
    "SELECT 1 FROM range(3) a WHERE a.range IN (1, len(range(9000000000)))",
    "SELECT 1 FROM range(3) a JOIN range(3) b ON true, range(9000000000)",
    "SELECT 1 FROM unnest([1, len(range(9000000000))])",
    "SELECT (SELECT 1 FROM range(3)), range(9000000000)",
    "SELECT 1 FROM range(3) a WINDOW w AS (ORDER BY 1, range(9000000000))",
    "FROM range(3) a SELECT 1, range(9000000000)",
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


@pytest.mark.parametrize("sql", [*WRITES, *REACHES, *UNBOUNDED, *SEVERAL, *WRONG])
def test_what_does_more_than_read_is_refused(kept: History, sql: str, tmp_path: Path) -> None:
    before = counts(kept)
    with pytest.raises(ConfigError) as caught:
        kept.console.run(sql.format(other=tmp_path / "other") if "{other}" in sql else sql)
    assert str(caught.value)
    assert counts(kept) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sql", UNBOUNDED)
def test_what_has_no_bound_is_refused_before_it_runs(sql: str) -> None:
    with pytest.raises(ConfigError, match="has no bound here|cannot be stopped"):
        check_functions(sql, [])


def counts(history: History) -> list[tuple[int, ...]]:
    tables = ("runs", "cells", "samples", "trials", "steps", "plans")
    with history.file.reading() as cursor:
        return [cursor.execute(f"SELECT count(*) FROM {table}").fetchall()[0] for table in tables]


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
    began = time.monotonic()
    with pytest.raises(ConfigError, match="stopped after 0.3 s"):
        kept.console.run(sql, timeout_s=0.3)
    assert time.monotonic() - began < 5
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


def test_the_limit_is_exact(kept: History) -> None:
    whole: Result = kept.console.run("SELECT * FROM range(10)", limit=10)
    assert (whole.num_rows, whole.is_truncated) == (10, False)
    cut = kept.console.run("SELECT * FROM range(11)", limit=10)
    assert (cut.num_rows, cut.is_truncated) == (10, True)


def test_too_much_memory_is_refused(kept: History) -> None:
    with pytest.raises(ConfigError, match="memory|stopped after"):
        kept.console.run("SELECT list(range) FROM range(10000000000)", timeout_s=20)
    assert kept.console.run("SELECT 1").num_rows == 1


@pytest.mark.parametrize("arguments", [{"limit": 0}, {"limit": 10_001}, {"timeout_s": 0}, {"timeout_s": float("nan")}])
def test_bounds_have_bounds(kept: History, arguments: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        kept.console.run("SELECT 1", **arguments)  # type: ignore[arg-type]


def test_writing_goes_on_beside_a_query_that_takes_its_time(history: History) -> None:
    failures: list[str] = []

    def ask() -> None:
        try:
            history.console.run("SELECT count(*) FROM range(1000000000000)", timeout_s=1)
        except ConfigError as error:
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


def test_after_a_fatal_failure_the_history_is_opened_anew(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise duckdb.FatalException("the database has been invalidated")

    with monkeypatch.context() as failing:
        failing.setattr("engine.history.console._result", fail)
        with pytest.raises(HistoryError, match="invalidated"):
            history.console.run("SELECT 1")
    assert history.runs.keep(make_run(3))
    assert history.console.run("SELECT * FROM samples").num_rows == 3
