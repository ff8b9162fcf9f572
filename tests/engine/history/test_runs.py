"""Benchmark runs in the history: measurements are saved, read back unchanged, and survive a crash."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import numpy as np
import pytest

from engine.errors import ConfigError, HistoryError
from engine.history import History
from engine.history.runs import CHUNK
from engine.runs import CellStatus, RunRecord
from engine.samples import FLAGS, SAMPLE, make_sample
from tests.engine.history.run_maker import assert_same_run, assert_same_samples, make_cell, make_run, make_samples
from tests.engine.history.trial_maker import NASTY, make_trial, uuid7

UNKNOWN = ("", "junk", "' OR 1=1 --", uuid7())


def started(history: History, num_cells: int = 2) -> str:
    """Start a run that has no samples yet, and return its id."""
    run = make_run(0, num_cells, status="running", outcome={})
    history.runs.begin(run)
    return run.id


def found(history: History, id: str) -> RunRecord:
    """Return a run that must exist."""
    run = history.runs.run(id)
    assert run is not None
    return run


def test_a_run_comes_back_as_it_was(history: History) -> None:
    run = make_run(57, 5)
    history.runs.begin(run)
    assert_same_run(history.runs.run(run.id), run)


def test_every_field_of_a_sample_has_a_column_of_its_type(history: History) -> None:
    with history.file.reading() as cursor:
        rows = cursor.execute(
            "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'samples' ORDER BY column_index"
        ).fetchall()
    types = {"i4": "INTEGER", "f8": "DOUBLE", "b1": "BOOLEAN", "i1": "VARCHAR"}
    expected = [(name, types[SAMPLE[name].str[1:]]) for name in SAMPLE.names or ()]
    assert sorted(rows) == sorted([("run_id", "UUID"), *expected])


def test_what_was_not_measured_is_null_in_the_table(history: History) -> None:
    id = started(history)
    history.runs.add(id, make_sample(ttft_s=0.5, flag=FLAGS.index("contended"))).result(60)
    with history.file.reading() as cursor:
        row = cursor.execute("SELECT ttft_s, tpot_s, steal_share, flag FROM samples").fetchone()
    assert row == (0.5, None, None, "contended")
    (sample,) = found(history, id).samples
    assert (sample["ttft_s"], FLAGS[sample["flag"]]) == (0.5, "contended")
    assert np.isnan(sample["tpot_s"])


def test_samples_come_back_in_the_order_of_their_positions(history: History) -> None:
    id, samples = started(history), make_samples(40)
    added = [history.runs.add(id, samples[start : start + 10]) for start in (20, 0, 30, 10)]
    for future in (*added, history.runs.add(id, make_samples(0))):
        future.result(60)
    assert_same_samples(found(history, id).samples, samples)


def test_a_run_longer_than_one_insert(history: History) -> None:
    run = make_run(2 * CHUNK + 5, 200)
    assert history.runs.keep(run)
    assert_same_run(history.runs.run(run.id), run)


def test_text_and_odd_values_survive(history: History) -> None:
    cell = make_cell(
        0,
        label=NASTY,
        reason=NASTY,
        settings={"model": NASTY, "parallel": np.int64(3), "values": (1, 2), "path": Path("/a/b")},
        facts={"load_warm_s": np.float64(0.125), "load_cold_s": np.nan},
        status="failed",
    )
    run = make_run(1, 1, name=NASTY, cells=(cell,), origin=NASTY, outcome={"sentence": NASTY, "shares": (1.2, np.inf)})
    history.runs.begin(run)
    kept = found(history, run.id)
    (kept_cell,) = kept.cells
    assert (kept.name, kept.origin, kept_cell.label, kept_cell.reason) == (NASTY,) * 4
    assert kept_cell.settings == {"model": NASTY, "parallel": 3, "values": [1, 2], "path": "/a/b"}
    assert kept_cell.facts["load_warm_s"] == 0.125
    assert np.isnan(kept_cell.facts["load_cold_s"])
    assert kept.outcome == {"sentence": NASTY, "shares": [1.2, None]}
    assert history.runs.recent()[0].sentence == NASTY


def test_a_run_from_its_first_sample_to_its_end(history: History) -> None:
    id = started(history, 3)
    assert found(history, id).status == "running"
    history.runs.add(id, make_samples(6, 3)).result(60)
    statuses: list[CellStatus] = ["done", "failed", "refused"]
    cells = [make_cell(number, status=status, reason=status) for number, status in enumerate(statuses)]
    for cell in cells:
        history.runs.save_cells(id, [cell]).result(60)
    history.runs.finish(id, "stopped", {"sentence": "Not enough data."})
    run = found(history, id)
    assert (run.status, run.outcome, run.cells) == ("stopped", {"sentence": "Not enough data."}, tuple(cells))
    history.runs.resume(id, {**run.plan, "rounds": 12})
    assert (found(history, id).status, found(history, id).plan["rounds"]) == ("running", 12)
    history.runs.add(id, make_samples(3, 3, first=6, seed=1)).result(60)
    history.runs.finish(id, "done", {})
    assert (found(history, id).status, len(found(history, id).samples)) == ("done", 9)


def test_a_replaced_sample_is_marked_and_nothing_else_changes(history: History) -> None:
    run, other = make_run(12), make_run(12)
    for each in (run, other):
        each.samples["is_replaced"] = False
        history.runs.begin(each)
    history.runs.replace_flags(run.id, [3, 4, 9]).result(60)
    history.runs.replace_flags(run.id, np.array([4, 10])).result(60)  # type: ignore[arg-type]
    history.runs.replace_flags(run.id, []).result(60)
    expected = run.samples.copy()
    expected["is_replaced"][[3, 4, 9, 10]] = True
    assert_same_samples(found(history, run.id).samples, expected)
    assert_same_run(history.runs.run(other.id), other)


def test_the_list_of_runs(history: History) -> None:
    newest = make_run(7, 3)
    cells = tuple(make_cell(number, settings={"model": f"/m/{name}.gguf"}) for number, name in enumerate("aba"))
    older = make_run(0, created_at=newest.created_at - timedelta(days=1), cells=cells, machine={}, outcome={})
    oldest = newest.created_at - timedelta(days=2)
    unnamed = make_run(1, 1, cells=(), created_at=oldest, plan={}, origin="llama-bench")
    assert history.runs.newest_id() is None
    for run in (older, newest, unnamed):
        history.runs.begin(run)
    history.record(make_trial()).result(60)
    first, second, third = history.runs.recent()
    assert (first.id, first.created_at, first.name, first.status) == (newest.id, newest.created_at, newest.name, "done")
    assert (first.num_cells, first.num_samples, first.model_name, first.machine_hash) == (3, 7, "story", "ab12")
    assert first.sentence == newest.outcome["sentence"]
    assert (second.id, second.num_samples, second.sentence) == (older.id, 0, "")
    assert (second.model_name, second.machine_hash) == ("a, b", "")
    assert (third.origin, third.model_name, third.num_cells) == ("llama-bench", "", 0)
    assert [run.id for run in history.runs.recent(2)] == [newest.id, older.id]
    assert history.runs.newest_id() == newest.id


def test_a_run_gets_another_name(history: History) -> None:
    id = started(history)
    history.runs.rename(id, "  after the update ")
    assert history.runs.recent()[0].name == "after the update"
    for name in ("", "  ", "x" * 201):
        with pytest.raises(ConfigError, match="name"):
            history.runs.rename(id, name)


def test_a_deleted_run_is_hidden_then_purged(path: Path) -> None:
    gone, stays = make_run(), make_run()
    with History.open(path) as history:
        for run in (gone, stays):
            history.runs.begin(run)
        assert history.runs.delete(gone.id)
        assert history.runs.run(gone.id) is None
        assert [run.id for run in history.runs.recent()] == [stays.id]
        assert history.runs.restore(gone.id)
        assert_same_run(history.runs.run(gone.id), gone)
        assert history.runs.delete(gone.id)
    with History.open(path) as history:
        assert not history.runs.restore(gone.id)
        assert_same_run(history.runs.run(stays.id), stays)
        history.runs.delete(stays.id)
        assert history.gc() == 1
    with duckdb.connect(path) as connection:
        for table in ("runs", "cells", "samples"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


def test_a_run_is_kept_once(history: History) -> None:
    run = make_run()
    assert history.runs.keep(run)
    assert not history.runs.keep(replace(run, name="another"))
    assert_same_run(history.runs.run(run.id), run)
    history.runs.delete(run.id)
    assert history.runs.keep(run)
    assert_same_run(history.runs.run(run.id), run)


def test_what_nobody_finished_is_interrupted(path: Path) -> None:
    done, foreign = make_run(), make_run(origin="box.zip", status="interrupted")
    with History.open(path) as history:
        id = started(history)
        history.runs.add(id, make_samples(4)).result(60)
        history.runs.begin(done)
        history.runs.keep(foreign)
        history.runs.keep(replace(foreign, id=uuid7(), status="running"))
        assert history.runs.interrupted() == []
    with History.open(path) as history:
        (left,) = history.runs.interrupted()
        assert (left.id, left.status, left.num_samples) == (id, "interrupted", 4)
        assert sorted(run.status for run in history.runs.recent()) == ["done", *["interrupted"] * 3]
        history.runs.resume(id)
        assert history.runs.interrupted() == []
        history.runs.finish(id, "done", {})
    with History.open(path) as history:
        assert history.runs.interrupted() == []


def test_an_unknown_id_is_no_run(history: History) -> None:
    for id in UNKNOWN:
        assert history.runs.run(id) is None
        assert not history.runs.delete(id)
        assert not history.runs.restore(id)
        for future in (
            history.runs.add(id, make_samples(1)),
            history.runs.save_cells(id, [make_cell(0)]),
            history.runs.replace_flags(id, [0]),
        ):
            with pytest.raises(HistoryError, match="no run"):
                future.result(60)
        for change in (history.runs.resume, lambda id: history.runs.finish(id, "done", {})):
            with pytest.raises(HistoryError, match="no run"):
                change(id)


def test_a_run_needs_a_uuid_and_a_time_zone(history: History) -> None:
    for keep in (history.runs.begin, history.runs.keep):
        with pytest.raises(ConfigError, match="UUID"):
            keep(make_run(id="7"))
        with pytest.raises(ConfigError, match="time zone"):
            keep(make_run(created_at=datetime(2026, 1, 1)))


def test_a_run_is_read_while_it_is_measured(history: History) -> None:
    id = started(history)

    def read() -> list[int]:
        return [len(found(history, id).samples) for _ in range(40)]

    with ThreadPoolExecutor(4) as readers:
        reading = [readers.submit(read) for _ in range(4)]
        for position in range(60):
            history.runs.add(id, make_samples(1, first=position)).result(60)
    for counts in (future.result(60) for future in reading):
        assert counts == sorted(counts)
    assert_positions(found(history, id), 60)


@pytest.mark.slow
def test_a_hundred_thousand_samples_are_read(history: History) -> None:
    run = make_run(100_000, 200)
    history.runs.keep(run)
    history.runs.keep(make_run(50_000, 10))
    assert_same_samples(found(history, run.id).samples, run.samples)


def assert_positions(run: RunRecord, num_samples: int) -> None:
    """Assert that the run has every sample from the first on."""
    np.testing.assert_array_equal(run.samples["position"], np.arange(num_samples))
