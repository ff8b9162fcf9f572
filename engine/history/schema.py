"""The tables, as an ordered list of migrations. A migration that has shipped is never edited: append another."""

from collections.abc import Callable

import duckdb

Migration = Callable[[duckdb.DuckDBPyConnection], object]


def trials(connection: duckdb.DuckDBPyConnection) -> None:
    """Trials, their steps and the tokenizers that read them.

    Times are UTC. Specs, messages, versions and names are JSON. One row of `steps` is one token: list columns hold its
    candidates, most probable first, `top_p_final` only up to the last one that was not cut (0 beyond), NULL where
    nothing was drawn. NULL elsewhere stands for a figure that was not taken.
    """
    connection.execute("""
        CREATE TABLE tokenizers (
            hash VARCHAR PRIMARY KEY,
            pieces BLOB[] NOT NULL,
            kinds BLOB NOT NULL,
            names VARCHAR NOT NULL,
            bos INTEGER,
            add_bos BOOLEAN NOT NULL,
            add_space_prefix BOOLEAN NOT NULL
        )""")
    connection.execute("""
        CREATE TABLE trials (
            id UUID PRIMARY KEY,
            created_at TIMESTAMP NOT NULL,
            deleted_at TIMESTAMP,
            parent UUID,
            label VARCHAR NOT NULL,
            title VARCHAR NOT NULL,
            prompt VARCHAR NOT NULL,
            messages VARCHAR NOT NULL,
            sampling VARCHAR NOT NULL,
            request VARCHAR NOT NULL,
            pool VARCHAR NOT NULL,
            model_name VARCHAR NOT NULL,
            model_path VARCHAR NOT NULL,
            model_hash VARCHAR NOT NULL,
            model_quantisation VARCHAR NOT NULL,
            model_num_parameters BIGINT NOT NULL,
            versions VARCHAR NOT NULL,
            tokenizer VARCHAR NOT NULL,
            prompt_ids INTEGER[] NOT NULL,
            text VARCHAR NOT NULL,
            finish_reason VARCHAR NOT NULL,
            seed BIGINT NOT NULL,
            queue_s DOUBLE NOT NULL,
            load_s DOUBLE NOT NULL,
            prefill_s DOUBLE NOT NULL,
            ttft_s DOUBLE NOT NULL,
            decode_s DOUBLE NOT NULL,
            num_prompt INTEGER NOT NULL,
            num_cached INTEGER NOT NULL,
            num_generated INTEGER NOT NULL,
            mean_surprise_bits DOUBLE
        )""")
    connection.execute("""
        CREATE TABLE steps (
            trial_id UUID NOT NULL,
            is_prompt BOOLEAN NOT NULL,
            position INTEGER NOT NULL,
            id INTEGER NOT NULL,
            flags INTEGER NOT NULL,
            logprob DOUBLE,
            rank INTEGER,
            entropy DOUBLE,
            normaliser DOUBLE,
            p_final DOUBLE,
            draw DOUBLE,
            elapsed_s DOUBLE,
            num_kept INTEGER NOT NULL,
            top_ids INTEGER[] NOT NULL,
            top_logprobs FLOAT[] NOT NULL,
            top_p_final FLOAT[]
        )""")


MIGRATIONS: list[Migration] = [trials]


def names() -> list[str]:
    """Names of all migrations, in order."""
    return [migration.__name__ for migration in MIGRATIONS]


def applied(connection: duckdb.DuckDBPyConnection) -> list[str] | None:
    """Names of the migrations that this database has seen, in order; None when it is not a history of ours."""
    tables = {name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if "migrations" not in tables:
        return None if tables else []
    return [name for (name,) in connection.execute("SELECT name FROM migrations ORDER BY number").fetchall()]


def migrate(connection: duckdb.DuckDBPyConnection) -> None:
    """Apply what is missing, all of it or, when one fails, nothing."""
    connection.begin()
    try:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS migrations "
            "(number INTEGER NOT NULL, name VARCHAR NOT NULL, applied_at TIMESTAMP NOT NULL)"
        )
        done = applied(connection) or []
        for number, migration in enumerate(MIGRATIONS[len(done) :], len(done) + 1):
            migration(connection)
            connection.execute(
                "INSERT INTO migrations VALUES (?, ?, now() AT TIME ZONE 'UTC')", [number, migration.__name__]
            )
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
