"""Database schema: an ordered list of migrations. A migration that has shipped is never edited: append another."""

from collections.abc import Callable

import duckdb

Migration = Callable[[duckdb.DuckDBPyConnection], object]


def trials(connection: duckdb.DuckDBPyConnection) -> None:
    """Create tables for trials, their steps and their tokenizers.

    Times are UTC. Specs, messages, versions and names are JSON. One row of `steps` is one token: list columns hold its
    candidates, most probable first, `top_p_final` only up to the last one that was not cut (0 beyond), NULL where
    nothing was drawn. NULL elsewhere is a figure that was not recorded.
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


def runs(connection: duckdb.DuckDBPyConnection) -> None:
    """Create tables for benchmark runs, configurations and samples; named plans and profiles; limits of machines.

    Times are UTC; plan, pool, machine, versions, settings, facts, outcome and limits are JSON. One row of `samples` is
    one measurement, never changed except for `is_replaced`; NULL is a figure that was not measured. Its columns are the
    fields of engine.samples.SAMPLE, with `flag` as its word.
    """
    _runs_and_cells(connection)
    _samples(connection)
    _kept_for_the_next_run(connection)


def _runs_and_cells(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("""
        CREATE TABLE runs (
            id UUID PRIMARY KEY,
            created_at TIMESTAMP NOT NULL,
            deleted_at TIMESTAMP,
            name VARCHAR NOT NULL,
            question VARCHAR NOT NULL,
            status VARCHAR NOT NULL,
            origin VARCHAR NOT NULL,
            model_name VARCHAR NOT NULL,
            machine_hash VARCHAR NOT NULL,
            sentence VARCHAR NOT NULL,
            plan VARCHAR NOT NULL,
            machine VARCHAR NOT NULL,
            versions VARCHAR NOT NULL,
            outcome VARCHAR NOT NULL
        )""")
    connection.execute("""
        CREATE TABLE cells (
            run_id UUID NOT NULL,
            number INTEGER NOT NULL,
            label VARCHAR NOT NULL,
            settings VARCHAR NOT NULL,
            status VARCHAR NOT NULL,
            reason VARCHAR NOT NULL,
            facts VARCHAR NOT NULL,
            PRIMARY KEY (run_id, number)
        )""")


def _samples(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("""
        CREATE TABLE samples (
            run_id UUID NOT NULL,
            cell INTEGER NOT NULL,
            round INTEGER NOT NULL,
            position INTEGER NOT NULL,
            started_at DOUBLE NOT NULL,
            duration_s DOUBLE NOT NULL,
            flag VARCHAR NOT NULL,
            is_anchor BOOLEAN NOT NULL,
            is_replaced BOOLEAN NOT NULL,
            tokens_per_s DOUBLE,
            end_to_end_per_s DOUBLE,
            prefill_per_s DOUBLE,
            decode_per_s DOUBLE,
            ttft_s DOUBLE,
            ttft_p95_s DOUBLE,
            tpot_s DOUBLE,
            tpot_p95_s DOUBLE,
            gap_p50_s DOUBLE,
            gap_p95_s DOUBLE,
            gap_p99_s DOUBLE,
            e2e_s DOUBLE,
            requests_per_s DOUBLE,
            goodput_per_s DOUBLE,
            decode_share DOUBLE,
            cpu_cores DOUBLE,
            workbench_share DOUBLE,
            pss_bytes DOUBLE,
            private_bytes DOUBLE,
            switches_per_s DOUBLE,
            steal_share DOUBLE,
            pressure_share DOUBLE,
            throttled_s DOUBLE,
            other_cores DOUBLE,
            major_faults DOUBLE,
            involuntary_switches DOUBLE,
            mhz DOUBLE
        )""")


def _kept_for_the_next_run(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("""
        CREATE TABLE plans (
            name VARCHAR PRIMARY KEY,
            saved_at TIMESTAMP NOT NULL,
            plan VARCHAR NOT NULL
        )""")
    connection.execute("""
        CREATE TABLE profiles (
            model_hash VARCHAR NOT NULL,
            name VARCHAR NOT NULL,
            saved_at TIMESTAMP NOT NULL,
            pool VARCHAR NOT NULL,
            source_run VARCHAR NOT NULL,
            PRIMARY KEY (model_hash, name)
        )""")
    connection.execute("""
        CREATE TABLE limits (
            machine_hash VARCHAR PRIMARY KEY,
            measured_at TIMESTAMP NOT NULL,
            limits VARCHAR NOT NULL
        )""")


def library(connection: duckdb.DuckDBPyConnection) -> None:
    """Create tables for marks of runs, trials and comparisons, and for named comparisons of trials.

    A row of `marks` belongs to the run, trial or comparison (`kind`) with this id; without a row it has no marks.
    Times are UTC; `spec` (the plan) and `trials` (the answers with their trials' ids) are JSON.
    """
    connection.execute("""
        CREATE TABLE marks (
            kind VARCHAR NOT NULL,
            id UUID NOT NULL,
            is_starred BOOLEAN NOT NULL DEFAULT false,
            is_archived BOOLEAN NOT NULL DEFAULT false,
            note VARCHAR NOT NULL DEFAULT '',
            tags VARCHAR[] NOT NULL DEFAULT [],
            PRIMARY KEY (kind, id)
        )""")
    connection.execute("""
        CREATE TABLE comparisons (
            id UUID PRIMARY KEY,
            created_at TIMESTAMP NOT NULL,
            deleted_at TIMESTAMP,
            name VARCHAR NOT NULL,
            spec VARCHAR NOT NULL,
            trials VARCHAR NOT NULL
        )""")


def embedding_samples(connection: duckdb.DuckDBPyConnection) -> None:
    """Add metrics of embedding samples; NULL in all other samples."""
    for name in ("sentences_per_s", "embedded_per_s", "compute_share"):
        connection.execute(f"ALTER TABLE samples ADD COLUMN {name} DOUBLE")


def vectors(connection: duckdb.DuckDBPyConnection) -> None:
    """Create tables for vectors of trials' prompts and outputs (`part`), and for the embedding models that made them.

    `model_hash` is of the model's files; a model has a row while its vectors are enabled. A NULL vector: there was no
    text. `is_cut`: the text was longer than the model reads.
    """
    connection.execute("""
        CREATE TABLE vector_models (
            hash VARCHAR PRIMARY KEY,
            name VARCHAR NOT NULL
        )""")
    connection.execute("""
        CREATE TABLE vectors (
            trial_id UUID NOT NULL,
            part VARCHAR NOT NULL,
            model_hash VARCHAR NOT NULL,
            is_cut BOOLEAN NOT NULL,
            vector FLOAT[384],
            PRIMARY KEY (trial_id, part, model_hash)
        )""")


def thread_numbers(connection: duckdb.DuckDBPyConnection) -> None:
    """Add the numbers of threads that computed most of a trial's steps and of its prompt; NULL where unknown."""
    for name in ("threads", "threads_batch"):
        connection.execute(f"ALTER TABLE trials ADD COLUMN {name} INTEGER")


def reused_space(connection: duckdb.DuckDBPyConnection) -> None:
    """Recreate trials and vectors without primary keys: DuckDB reuses the space of deleted rows only in tables without.

    Measured: of 800,000 rows, of which the latest 60,000 were left, a key kept 58 MB instead of 4 MB. Whoever inserts
    checks for ids that exist.
    """
    for table in ("trials", "vectors"):
        (sql,) = connection.execute("SELECT sql FROM duckdb_tables() WHERE table_name = ?", [table]).fetchone() or ("",)
        connection.execute(f"ALTER TABLE {table} RENAME TO {table}_with_key")
        connection.execute(_without_key(sql))
        connection.execute(f"INSERT INTO {table} FROM {table}_with_key")
        connection.execute(f"DROP TABLE {table}_with_key")


def _without_key(sql: str) -> str:
    """Return a CREATE TABLE of DuckDB's own writing without its primary key, of one column or at its end."""
    before, _, after = sql.replace(" PRIMARY KEY, ", " NOT NULL, ").partition(", PRIMARY KEY(")
    return before + after.partition(")")[2] if after else before


def unknown_fields(connection: duckdb.DuckDBPyConnection) -> None:
    """Add the names of the fields of an API call that were ignored; NULL where a trial has none, or is older."""
    connection.execute("ALTER TABLE trials ADD COLUMN unknown_fields VARCHAR[]")


def stages(connection: duckdb.DuckDBPyConnection) -> None:
    """Add what each sampler stage left of a generated token's candidates; NULL where that was not recorded.

    `stage_kept`: candidates left after each stage, in the order of `engine.stages.stages_of`; `stage_mass`: their
    probability in the model's own distribution; `top_cut`: for each candidate the stage that removed it, counted from
    1, or 0.
    """
    for name, kind in (("stage_kept", "INTEGER"), ("stage_mass", "FLOAT"), ("top_cut", "UTINYINT")):
        connection.execute(f"ALTER TABLE steps ADD COLUMN {name} {kind}[]")


def saved(connection: duckdb.DuckDBPyConnection) -> None:
    """Create tables for saved views of the History page and for reports.

    Times are UTC; `query` (the address's parameters by name) and `blocks` (the parts of a report, in order) are JSON.
    """
    connection.execute("""
        CREATE TABLE saved_views (
            name VARCHAR PRIMARY KEY,
            saved_at TIMESTAMP NOT NULL,
            query VARCHAR NOT NULL
        )""")
    connection.execute("""
        CREATE TABLE reports (
            id UUID PRIMARY KEY,
            created_at TIMESTAMP NOT NULL,
            changed_at TIMESTAMP NOT NULL,
            deleted_at TIMESTAMP,
            name VARCHAR NOT NULL,
            blocks VARCHAR NOT NULL
        )""")


def engines(connection: duckdb.DuckDBPyConnection) -> None:
    """Add the external engine that answered a trial (JSON: name, url, dialect), what its log-probabilities are of, and
    who asked; NULL where a pool of this machine answered, which tells those of the model, and where nobody is named."""
    for name in ("engine", "logprobs_of", "client"):
        connection.execute(f"ALTER TABLE trials ADD COLUMN {name} VARCHAR")


def beams(connection: duckdb.DuckDBPyConnection) -> None:
    """Add the beam search whose best sequence a trial is (JSON, see BeamPart); NULL for other trials."""
    connection.execute("ALTER TABLE trials ADD COLUMN beams VARCHAR")


def nodes(connection: duckdb.DuckDBPyConnection) -> None:
    """Add the node of a cluster whose worker answered a trial; NULL for this machine and for what stands elsewhere."""
    connection.execute("ALTER TABLE trials ADD COLUMN node VARCHAR")


MIGRATIONS: list[Migration] = [
    trials,
    runs,
    library,
    embedding_samples,
    vectors,
    thread_numbers,
    reused_space,
    unknown_fields,
    stages,
    saved,
    engines,
    beams,
    nodes,
]


def names() -> list[str]:
    """Return the names of all migrations, in order."""
    return [migration.__name__ for migration in MIGRATIONS]


def applied(connection: duckdb.DuckDBPyConnection) -> list[str] | None:
    """Return the names of the migrations applied to this database, in order.

    Empty for a database without tables; None where it is not a history of this workbench.
    """
    tables = {name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if "migrations" not in tables:
        return None if tables else []
    return [name for (name,) in connection.execute("SELECT name FROM migrations ORDER BY number").fetchall()]


def migrate(connection: duckdb.DuckDBPyConnection) -> None:
    """Apply all missing migrations in one transaction; if one fails, none is applied."""
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
