"""Migrations: old files are brought up to date, with a copy of the previous state beside them."""

import json
from pathlib import Path

import duckdb
import numpy as np
import pytest

from engine.errors import HistoryError
from engine.history import History, schema
from engine.history.columns import tokenizer_row
from tests.engine.history.run_maker import assert_same_run, make_run
from tests.engine.history.trial_maker import VOCABULARY, make_trial, uuid7, with_beams

OLDEST_TRIAL = """
    INSERT INTO trials BY NAME SELECT
        ?::UUID AS id, TIMESTAMP '2026-11-20 12:00:00' AS created_at, '' AS label, 'a' AS title, 'a' AS prompt,
        '[]' AS messages, '{"temperature": 0.5}' AS sampling, '{"top_k": 2}' AS request, '{}' AS pool,
        'story' AS model_name, 'story.gguf' AS model_path, 'ab' AS model_hash, 'Q8_0' AS model_quantisation,
        7000000 AS model_num_parameters, '{}' AS versions, ? AS tokenizer, [257, 65] AS prompt_ids, 'b' AS text,
        'length' AS finish_reason, 1 AS seed, 0 AS queue_s, 0 AS load_s, 0 AS prefill_s, 0 AS ttft_s, 0 AS decode_s,
        2 AS num_prompt, 0 AS num_cached, 1 AS num_generated
"""
OLDEST_STEP = """
    INSERT INTO steps BY NAME SELECT
        ?::UUID AS trial_id, false AS is_prompt, 0 AS position, 66 AS id, 4 AS flags, -0.5 AS logprob, 1 AS rank,
        1.5 AS entropy, 3.0 AS normaliser, 1.0 AS p_final, 0.25 AS draw, 0.125 AS elapsed_s, 1 AS num_kept,
        [66, 67] AS top_ids, [-0.5, -1.5] AS top_logprobs, [1.0] AS top_p_final
"""


def make_oldest(path: Path, monkeypatch: pytest.MonkeyPatch, trial_id: str | None = None) -> None:
    """Create a file as the first version left it, using the first migration alone."""
    with monkeypatch.context() as first_only, duckdb.connect(path) as connection:
        first_only.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
        schema.migrate(connection)
        if trial_id:
            row = tokenizer_row(VOCABULARY)
            connection.execute(f"INSERT INTO tokenizers VALUES ({', '.join('?' * len(row))})", list(row.values()))
            connection.execute(OLDEST_TRIAL, [trial_id, VOCABULARY.hash])
            connection.execute(OLDEST_STEP, [trial_id])


@pytest.mark.parametrize("is_old", [False, True])
def test_tables_with_deletions_have_no_key(path: Path, monkeypatch: pytest.MonkeyPatch, is_old: bool) -> None:
    trial_id = uuid7()
    if is_old:
        make_oldest(path, monkeypatch, trial_id)
    with History.open(path) as history, history.file.reading() as cursor:
        found = cursor.execute(
            "SELECT table_name, constraint_type, count(*) FROM duckdb_constraints() "
            "WHERE table_name IN ('trials', 'vectors') GROUP BY ALL ORDER BY ALL"
        ).fetchall()
        assert [row[:2] for row in found] == [("trials", "NOT NULL"), ("vectors", "NOT NULL")]
        assert found[0][2] == 28
        if is_old:
            assert history.trial(trial_id) is not None


def mood(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("ALTER TABLE trials ADD COLUMN mood VARCHAR DEFAULT 'calm'")


def broken(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("ALTER TABLE trials ADD COLUMN half VARCHAR")
    connection.execute("ALTER TABLE nowhere ADD COLUMN half VARCHAR")


@pytest.fixture(params=["the migrations of this version", "one more that follows them"])
def _further(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "one more that follows them":
        monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, mood])


@pytest.mark.usefixtures("_further")
@pytest.mark.parametrize("has_rows", [False, True])
def test_the_oldest_file_opens(path: Path, monkeypatch: pytest.MonkeyPatch, has_rows: bool) -> None:
    id = uuid7()
    make_oldest(path, monkeypatch, id if has_rows else None)
    new, run = with_beams(make_trial()), make_run()
    with History.open(path) as history:
        assert [summary.id for summary in history.recent()] == [id] * has_rows
        if has_rows:
            trial = history.trial(id)
            assert trial is not None and trial.beams is None
            assert (trial.sampling.temperature, trial.request.top_k, trial.parent) == (0.5, 2, None)
            (step,) = trial.completion.steps
            assert (step.text, step.logprob, step.draw) == ("B", -0.5, 0.25)
            assert [(candidate.id, candidate.p_final) for candidate in step.top] == [(66, 1.0), (67, 0.0)]
        history.record(new).result(60)
        history.runs.keep(run)
    with History.open(path) as history:
        assert_same_run(history.runs.run(run.id), run)
        found = history.trial(new.id)
        assert found is not None and found.beams == new.beams
        np.testing.assert_array_equal(found.completion.steps.records, new.completion.steps.records)
    with duckdb.connect(path) as connection:
        assert schema.applied(connection) == schema.names()


def test_the_file_as_it_was_lies_beside_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_oldest(path, monkeypatch, uuid7())
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, mood])
    before = path.read_bytes()
    History.open(path).close()
    backup = Path(f"{path}.before-{schema.names()[1]}")
    assert backup.read_bytes() == before
    assert sorted(path.parent.glob("history*")) == [path, backup]
    with duckdb.connect(path) as connection:
        assert connection.execute("SELECT mood FROM trials").fetchall() == [("calm",)]


def test_a_migration_that_fails_leaves_everything_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    id = uuid7()
    make_oldest(path, monkeypatch, id)
    with monkeypatch.context() as unlucky:
        unlucky.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, mood, broken])
        with pytest.raises(HistoryError, match="nowhere"):
            History.open(path)
    with History.open(path) as history:
        assert history.trial(id) is not None
        with history.file._connection.cursor() as cursor:
            columns = cursor.execute("SELECT column_name FROM duckdb_columns() WHERE table_name = 'trials'").fetchall()
    assert not {("mood",), ("half",)} & set(columns)


def test_names_of_migrations_are_unique_and_rows_are_json() -> None:
    assert len(set(schema.names())) == len(schema.names())
    assert json.loads(str(tokenizer_row(VOCABULARY)["names"])) == {"257": "</s>"}
