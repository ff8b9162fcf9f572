"""Which functions a person's SQL may call: none that reaches beyond the history's tables, none without a bound."""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

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
_WORD = re.compile(rb'"[^"]*"|\w+|[(),.]')
_BEFORE_TABLES = frozenset({"join", "lateral"})
_WITHIN_FROM = frozenset(
    {
        *",.",
        "as",
        "asof",
        "cross",
        "full",
        "inner",
        "join",
        "lateral",
        "left",
        "natural",
        "outer",
        "positional",
        "right",
    }
)
"""What may stand between FROM and a comma behind which another table comes; besides names, and what is in brackets."""

_FROM_WITHIN = frozenset({"extract", "overlay", "substring", "trim"})
"""Functions with a FROM between their arguments, which is followed by no table."""


def check_functions(sql: str, table_functions: Iterable[str]) -> None:
    """Raise ConfigError for a call of a function that is not allowed; `table_functions`: all that DuckDB knows."""
    refused = frozenset(table_functions) - TABLES
    for name, is_table in _calls(sql):
        if name in refused - UNBOUNDED:
            raise ConfigError(f"{name}() reaches outside the tables of the history, which this console does not.")
        if name in UNBOUNDED:
            raise ConfigError(f"{name}() can take any time or memory, and cannot be stopped: leave it out.")
        if name in SERIES and not is_table:
            raise ConfigError(f"{name}() as a list has no bound here; use it as a table: FROM {name}(…).")


def _calls(sql: str) -> Iterator[tuple[str, bool]]:
    """Names that stand before an opening bracket, in small letters, and whether each is sure to stand for a table."""
    within = [""]  # of each open bracket, the innermost last: "from" where tables are listed, else what it belongs to
    before = ""
    for (word, is_name), (after, _) in pairwise([*_words(sql), ("", False)]):
        is_listed = within[-1] == "from" and before in (",", "from")
        if after == "(" and word not in ("", *"(),."):
            yield word, is_listed or before in _BEFORE_TABLES
        if word == "(":
            within.append(before)
        elif word == ")":
            within = within[:-1] or [""]
        elif word == "from" and before != "distinct" and within[-1] not in _FROM_WITHIN:
            within[-1] = "from"
        elif within[-1] == "from" and not (is_name or word in SERIES or word in _WITHIN_FROM):
            within[-1] = ""
        before = word


def _words(sql: str) -> Iterator[tuple[str, bool]]:
    """Each token in small letters, empty where it is no word and no sign that matters, and whether it is a name."""
    text = sql.encode()  # DuckDB counts bytes
    for start, kind in duckdb.tokenize(sql):
        if kind != duckdb.token_type.comment:
            match = _WORD.match(text, start)
            yield match[0].decode().strip('"').lower() if match else "", kind == duckdb.token_type.identifier
