"""Generated hostile SQL: each statement ends, costs the workbench no memory, writes nothing and spoils no other."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import ConfigError, EngineError, LimitExceeded
from engine.history import History
from engine.history.console import MOST_ROWS
from engine.history.console_sql import MOST_BYTES, MOST_LEVELS
from tests.engine.history.run_maker import make_run

pytestmark = pytest.mark.slow

ALLOWED_S = 0.5
MOST_GROWTH = 50_000_000
WRITTEN = "{out}"  # stands for a file that must never be created

# Expressions that need much time or memory
BOMBS = (
    "length(printf('%1999999999d', 1))",
    "length(format('{:>500000000}', 1))",
    "length(repeat('x', 3000000000))",
    "length(repeat(repeat('x', 60000), 60000))",
    "length(replace(repeat('a', 100000), 'a', repeat('b', 100000)))",
    "length(regexp_replace(repeat('a', 100000), 'a', repeat('b', 100000), 'g'))",
    "length(hex(hex(hex(hex(hex(hex(repeat('a', 30000000))))))))",
    "length(lpad('x', 2000000000, 'y'))",
    "len(('[' || repeat('1,', 200000000) || '1]')::INTEGER[])",
    "len(range(3000000000))",
    "len(list_resize([1], 2000000000))",
    "len(string_split(repeat('a,', 300000000), ','))",
    "len(list_transform(range(100000000), lambda x: repeat('x', 1000)))",
    "list_reduce(range(1000000000), lambda a, b: a + b)",
    "levenshtein(repeat('a', 1000000), repeat('b', 1000000))",
    "jaro_winkler_similarity(repeat('a', 9000000), repeat('a', 9000000))",
    "regexp_matches(repeat('a', 5000000), '(a?){500}a{500}')",
    "length(bitstring('1', 4000000000))",
    "pg_sleep(1000)",
)
# Tables that need much time or memory
TABLES = (
    "(SELECT max(n) FROM (WITH RECURSIVE e AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM e) SELECT n FROM e))",
    "(WITH RECURSIVE e AS (SELECT 'x' AS n UNION ALL SELECT n || n FROM e) SELECT n FROM e)",
    "(SELECT unnest(generate_series(1, 4000000000)) AS n)",
    "(SELECT list(range) AS n FROM range(10000000000))",
    "(SELECT range AS n FROM range(100000000000) ORDER BY hash(range))",
    "(SELECT DISTINCT md5(range::VARCHAR) AS n FROM range(10000000000))",
    "(SELECT string_agg(md5(range::VARCHAR), '') AS n FROM range(10000000000))",
    "(PIVOT (SELECT range AS n FROM range(2000000)) ON n USING count(*))",
    "(SELECT count(*) AS n FROM samples a, samples b, samples c, samples d, samples e, samples f)",
    "(SELECT range AS n FROM range(100000000000))",
)
# Statements that would write or reach outside
REACHES = (
    f"COPY (SELECT 1) TO '{WRITTEN}'",
    f"WITH x AS (COPY (SELECT 1) TO '{WRITTEN}') SELECT * FROM x",
    f"ATTACH '{WRITTEN}' AS other",
    f"EXPORT DATABASE '{WRITTEN}'",
    f"SET temp_directory = '{WRITTEN}'",
    f"PRAGMA profiling_output = '{WRITTEN}'",
    f"CALL enable_profiling(save_location = '{WRITTEN}')",
    "CREATE PERSISTENT SECRET s (TYPE http, bearer_token 'x')",
    "INSTALL httpfs",
    f"LOAD '{WRITTEN}'",
    "SET memory_limit = '900GB'",
    "DELETE FROM runs",
    "WITH gone AS (DELETE FROM runs RETURNING *) SELECT * FROM gone",
    "COMMIT",
    "SELECT 1; DROP TABLE runs",
    "CREATE TEMP TABLE mine AS SELECT * FROM range(1000000000)",
    "SELECT getenv('HOME')",
    "SELECT * FROM read_text('/etc/hostname')",
    "SELECT * FROM glob('/*')",
    f"SELECT * FROM query('COPY runs TO ''{WRITTEN}''')",
)


def doubled(levels: int) -> str:
    """Return nested cross joins of a table with itself; the planner's work grows as 2.7 to the power of `levels`."""
    parts = [f"c{n} AS (SELECT * FROM c{n - 1} a, c{n - 1} b)" for n in range(1, levels + 1)]
    return f"WITH c0 AS (SELECT 1 AS x), {', '.join(parts)} SELECT count(*) FROM c{levels}"


values = st.one_of(
    st.sampled_from(BOMBS),
    st.builds(lambda one, other: f"({one}) + ({other})", st.sampled_from(BOMBS), st.sampled_from(BOMBS)),
    st.builds("CASE WHEN {} > 0 THEN 1 ELSE 2 END".format, st.sampled_from(BOMBS)),
    st.builds("(SELECT {} FROM range(3) LIMIT 1)".format, st.sampled_from(BOMBS)),
)
tables = st.one_of(
    st.sampled_from(TABLES),
    st.builds("(SELECT {} AS n FROM range(1000))".format, values),
    st.builds("(SELECT * FROM {} a CROSS JOIN {} b)".format, st.sampled_from(TABLES), st.sampled_from(TABLES)),
)
bombs = st.one_of(
    st.builds("SELECT {}".format, values),
    st.builds("FROM {} t".format, tables),
    st.builds("EXPLAIN ANALYZE SELECT * FROM {} t".format, tables),
    st.builds("SELECT count(*) FROM {} t".format, tables),
    st.builds("SUMMARIZE SELECT * FROM {} t".format, tables),
    st.builds("WITH t AS MATERIALIZED (SELECT * FROM {} t) SELECT * FROM t".format, tables),
    st.builds("PIVOT {} ON n USING count(*)".format, tables),
    st.builds(doubled, st.integers(12, 60)),
    st.builds(lambda depth: f"SELECT {'(' * depth}1{')' * depth}", st.integers(1_000, 40_000)),
    st.builds(lambda terms: f"SELECT {'+'.join('1' * terms)}", st.integers(1_000, 45_000)),
)
hostile = st.one_of(bombs, st.sampled_from(REACHES))


def structs(levels: int) -> str:
    """Return a struct that holds two of the next level: 2 to the power of `levels` values."""
    parts = [f"a{n} AS (SELECT {{'x': v, 'y': v}} v FROM a{n - 1})" for n in range(1, levels + 1)]
    return f"WITH a0 AS (SELECT 1 v), {', '.join(parts)} SELECT v FROM a{levels}"


def wide(num_columns: int, num_rows: int) -> str:
    """Return a table of this size."""
    names = ", ".join(f"{n} AS c{n}" for n in range(10))
    return f"SELECT {', '.join(['t.*'] * (num_columns // 10))} FROM (SELECT {names} FROM range({num_rows})) t"


large_results = st.one_of(
    st.builds(structs, st.integers(8, 14)),
    st.builds(wide, st.integers(100, 6_000), st.integers(1, 1_000)),
    st.builds(lambda levels: f"SELECT {'[' * levels}1{']' * levels} AS v", st.integers(1, 300)),
    st.builds("SELECT repeat('x', {}) FROM range({})".format, st.integers(1, 400_000_000), st.integers(1, 20)),
    st.builds("SELECT range({}) FROM range({})".format, st.integers(1, 90_000_000), st.integers(1, 20)),
    st.builds("SELECT list(range) FROM range({})".format, st.integers(1, 200_000_000)),
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """History with runs that no statement may change."""
    home = tmp_path_factory.mktemp("hostile")
    with History.open(home / "history.duckdb") as history:
        for _ in range(3):
            history.runs.keep(make_run(40, 4))
        history.console.run("SELECT 1")
        yield history


def rss() -> int:
    return psutil.Process().memory_info().rss


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sql=hostile)
def test_hostile_sql_ends_and_changes_nothing(kept: History, tmp_path: Path, sql: str) -> None:
    before = rss()
    home = sorted(os.listdir(kept.path.parent))
    try:
        result = kept.console.run(sql.replace(WRITTEN, str(tmp_path / "out")), timeout_s=ALLOWED_S)
    except (ConfigError, LimitExceeded) as error:
        assert str(error)
    else:
        assert result.num_rows <= MOST_ROWS and result.table.nbytes <= MOST_BYTES
        del result
    assert rss() - before < MOST_GROWTH
    assert list(tmp_path.iterdir()) == []
    assert sorted(os.listdir(kept.path.parent)) == home
    assert kept.console.run("SELECT count(*) AS n FROM runs").table.to_pylist() == [{"n": 3}]
    assert len(kept.runs.recent()) == 3


@settings(max_examples=15, deadline=None)
@given(statements=st.lists(large_results, min_size=1, max_size=4))
def test_a_large_result_costs_the_next_query_nothing(kept: History, statements: list[str]) -> None:
    for sql in statements:
        with suppress(ConfigError, LimitExceeded):
            kept.console.run(sql, timeout_s=5)
        assert kept.console.run("SELECT 1 AS n").table.to_pylist() == [{"n": 1}]


@pytest.mark.parametrize("nested", ["[{}]", "{{'a': {}}}", "MAP {{'a': {}}}"])
def test_a_result_nested_too_deeply_is_refused_with_its_reason(kept: History, nested: str) -> None:
    most = 0
    for levels in (1, 20, *range(56, 68), 150):
        value = "1"
        for _ in range(levels):
            value = nested.format(value)
        try:
            assert kept.console.run(f"SELECT {value} AS v").num_rows == 1
            most = levels
        except ConfigError as error:
            assert "nested" in str(error) and "VARCHAR" in str(error)
            assert levels > MOST_LEVELS or "MAP" in nested
        except LimitExceeded as error:  # far too deep, which may take all the memory that the console has
            assert "more memory" in str(error) and levels == 150
        assert kept.console.run(f"SELECT ({value})::VARCHAR AS v").num_rows == 1
    assert most >= 20


@pytest.mark.parametrize("sql", REACHES)
def test_what_reaches_outside_is_refused(kept: History, tmp_path: Path, sql: str) -> None:
    with pytest.raises(EngineError):
        kept.console.run(sql.replace(WRITTEN, str(tmp_path / "out")))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("levels", [23, 200])
def test_a_planner_that_takes_too_long_is_ended(kept: History, levels: int) -> None:
    """Planning ignores interrupts, so only killing the process ends it."""
    with pytest.raises(LimitExceeded, match="longer than|memory"):
        kept.console.run(doubled(levels), timeout_s=ALLOWED_S)


def test_a_plan_of_a_few_levels_is_answered(kept: History) -> None:
    """The shape of the statement is allowed; only the time and memory of its planning are limited."""
    assert kept.console.run(doubled(8)).num_rows == 1
