"""Which functions a person's SQL may call: none that reaches beyond the history's tables, none without a bound."""

import re
from collections.abc import Iterable, Iterator

import duckdb

from engine.errors import ConfigError

TABLES = frozenset(
    {
        *("generate_series", "json_each", "json_tree", "range", "unnest"),
        *("duckdb_columns", "duckdb_constraints", "duckdb_databases", "duckdb_functions", "duckdb_indexes"),
        *("duckdb_keywords", "duckdb_memory", "duckdb_schemas", "duckdb_settings", "duckdb_tables", "duckdb_types"),
        *("duckdb_views", "pragma_database_size", "pragma_storage_info", "pragma_table_info", "pragma_version"),
    }
)
"""Table functions that may be called: they make numbers, or read the history's own tables and catalogue."""

UNBOUNDED = frozenset(
    {
        *("array_resize", "bitstring", "list_resize", "lpad", "repeat", "rpad"),
        *("damerau_levenshtein", "editdist3", "jaro_similarity", "jaro_winkler_similarity", "levenshtein"),
    }
)
"""Functions that make much of little, which no memory limit sees, or that cannot be interrupted (measured: two texts of
100,000 characters hold levenshtein for 14 s)."""

SERIES = frozenset({"generate_series", "range"})
_WORD = re.compile(rb'"[^"]*"|\w+|\(')
_BEFORE_TABLES = frozenset({"from", "join", "lateral"})


def check_functions(sql: str, table_functions: Iterable[str]) -> None:
    """Raise ConfigError for a call of a function that is not allowed; `table_functions`: all that DuckDB knows."""
    refused = frozenset(table_functions) - TABLES
    for before, name in _calls(sql):
        if name in refused - UNBOUNDED:
            raise ConfigError(f"{name}() reaches outside the tables of the history, which this console does not.")
        if name in UNBOUNDED:
            raise ConfigError(f"{name}() can take any time or memory, and cannot be stopped: leave it out.")
        if name in SERIES and before not in _BEFORE_TABLES:
            raise ConfigError(f"{name}() as a list has no bound here; use it as a table: FROM {name}(…).")


def _calls(sql: str) -> Iterator[tuple[str, str]]:
    """Names that stand before an opening bracket, each with the word before it, in small letters."""
    text = sql.encode()  # DuckDB counts bytes
    starts = [start for start, kind in duckdb.tokenize(sql) if kind != duckdb.token_type.comment]
    words = [_word(text, start) for start in starts]
    for before, word, after in zip(["", *words], words, words[1:], strict=False):
        if after == "(" and word:
            yield before, word


def _word(text: bytes, start: int) -> str:
    match = _WORD.match(text, start)
    return match[0].decode().strip('"').lower() if match else ""
