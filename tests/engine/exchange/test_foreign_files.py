"""Import of foreign files: recognised by content, previewed, saved once, or refused with the reason."""

import io
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.errors import EngineError
from engine.exchange.importer import Importer
from engine.exchange.llama_bench_files import run_of
from engine.exchange.llama_bench_text import read_rows, write_rows
from engine.history import History, export_history, run_bytes
from engine.history.export import family_to_json, to_csv, to_json
from engine.history.run_columns import sample_table
from engine.history.run_file import ALWAYS
from engine.history.trial_file import trial_bytes
from engine.runs import RunRecord
from engine.workbench.trials import StoredTrial
from tests.engine.exchange.test_llama_bench_files import row
from tests.engine.exchange.test_logs import CANDIDATES, block
from tests.engine.history.run_maker import assert_same_run, make_run
from tests.engine.history.trial_maker import NASTY, make_trial

LINES = "235 tokens in 80s = 2.93 tokens/s (4 threads)\n393 tokens in 127s\n"


@pytest.fixture(scope="module")
def importer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Importer]:
    with Importer(tmp_path_factory.mktemp("home")) as importer:
        yield importer


@pytest.fixture
def history(tmp_path: Path) -> Any:
    with History.open(tmp_path / "history.duckdb") as opened:
        yield opened


def archive() -> bytes:
    file = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, History.open(Path(folder, "history.duckdb")) as other:
        other.runs.keep(make_run())
        other.record(make_trial()).result()
        export_history(other, file)
    return file.getvalue()


def parquet(table: pa.Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


def samples_parquet(run: RunRecord) -> bytes:
    labels = pa.array([f"layout {cell}" for cell in run.samples["cell"]])
    return parquet(sample_table(run.samples).append_column("label", labels))


def bench_rows() -> list[dict[str, Any]]:
    return [row(), row(n_prompt=512, n_gen=0)]


KNOWN: dict[str, tuple[Callable[[], bytes], str, int, int, int]] = {
    # name: content, kind, rows, runs, trials
    "our run": (lambda: run_bytes(make_run(12)), "run", 12, 1, 0),
    "our trial": (lambda: trial_bytes(make_trial(6)), "trial", 6, 0, 1),
    "our trial as JSON": (lambda: to_json(make_trial(6)), "trial", 6, 0, 1),
    "our trials as JSON": (lambda: family_to_json([make_trial(6), make_trial(2)]), "trials", 2, 0, 2),
    "an archive": (archive, "archive", 1 + 12 + 1 + 6 + 1, 1, 1),
    "llama-bench JSON": (lambda: json.dumps(bench_rows()).encode(), "llama-bench", 10, 1, 0),
    "llama-bench JSONL": (lambda: "\n".join(map(json.dumps, bench_rows())).encode(), "llama-bench", 10, 1, 0),
    "llama-bench CSV": (
        lambda: write_rows(read_rows(json.dumps(bench_rows())), "csv").encode(),
        "llama-bench",
        2,
        1,
        0,
    ),
    "llama-bench SQL": (
        lambda: write_rows(read_rows(json.dumps(bench_rows())), "sql").encode(),
        "llama-bench",
        2,
        1,
        0,
    ),
    "with a byte order mark": (lambda: b"\xef\xbb\xbf\n" + json.dumps(bench_rows()).encode(), "llama-bench", 10, 1, 0),
    "a timing log": (lambda: (block(1) + block(2)).encode(), "timing log", 2, 1, 0),
    "a log of candidates": (lambda: CANDIDATES.encode(), "candidates", 5, 0, 1),
    "noted lines": (LINES.encode, "lines", 2, 1, 0),
    "samples in Parquet": (lambda: samples_parquet(make_run(12)), "parquet", 12, 1, 0),
    "llama-bench in Parquet": (lambda: parquet(pa.Table.from_pylist(bench_rows())), "parquet", 10, 1, 0),
}


@pytest.mark.parametrize("what", KNOWN)
def test_what_is_known_is_shown_and_kept_once(importer: Importer, history: History, what: str) -> None:
    make, kind, num, num_runs, num_trials = KNOWN[what]
    data = make()
    found = importer.recognise("from elsewhere", data)
    assert (found.kind, found.num) == (kind, num)
    assert found.label
    assert 0 < len(found.preview) <= 50
    assert len({tuple(each) for each in found.preview}) == 1
    assert (history.runs.recent(), history.recent()) == ([], [])

    taken = importer.take_in(history, "from elsewhere", data)
    assert (taken.kind, len(taken.run_ids), len(taken.trial_ids)) == (kind, num_runs, num_trials)
    assert "imported" in taken.sentence
    assert {run.id for run in history.runs.recent()} == set(taken.run_ids)
    assert {trial.id for trial in history.recent()} == set(taken.trial_ids)

    again = (
        importer.take_in(history, "under another name", data)
        if kind != "lines"
        else importer.take_in(history, "from elsewhere", data)
    )
    assert "already present" in again.sentence
    assert "imported" not in again.sentence
    assert (len(history.runs.recent()), len(history.recent())) == (num_runs, num_trials)


def test_a_path_is_read_as_its_content_is(importer: Importer, history: History, tmp_path: Path) -> None:
    for name, data in (("a.zip", archive()), ("lines.txt", LINES.encode())):
        (tmp_path / name).write_bytes(data)
        assert importer.recognise(name, tmp_path / name) == importer.recognise(name, data)
        assert importer.take_in(history, name, tmp_path / name).run_ids
    with pytest.raises(EngineError, match="cannot be read"):
        importer.recognise("nowhere", tmp_path / "nowhere")


def test_what_was_deleted_comes_back(importer: Importer, history: History) -> None:
    data = CANDIDATES.encode()
    (id,) = importer.take_in(history, "candidates.log", data).trial_ids
    history.delete(id)
    assert "1 trial imported" in importer.take_in(history, "candidates.log", data).sentence
    assert [trial.id for trial in history.recent()] == [id]


def test_a_run_says_where_it_came_from(importer: Importer, history: History) -> None:
    run = make_run(20)
    (id,) = importer.take_in(history, "friend.run.zip", run_bytes(run)).run_ids
    assert_same_run(history.runs.run(id), replace(run, origin="friend.run.zip"))


def test_a_log_of_candidates_is_a_trial_that_can_be_looked_at(importer: Importer, history: History) -> None:
    text = CANDIDATES + CANDIDATES.replace("1699000000", "1699000003").replace("302: ' of'", "13: ' \n'")
    (id,) = importer.take_in(history, "notes.log", text.encode()).trial_ids
    record = history.trial(id)
    assert record is not None
    trial = StoredTrial(record)
    first, second = trial.steps
    assert (first.id, first.text, second.text) == (302, " of", " \n")
    assert first.logprob == pytest.approx(np.log(0.503))
    assert (first.rank, second.rank, first.p_final) == (1, 5, 0.503)
    assert [one.text for one in first.top] == [" of", " ", " about", " approximately", " \n"]
    assert [one.p_final for one in first.top] == pytest.approx([0.503, 0.294, 0.047, 0.009, 0.001])
    assert (first.elapsed_s, second.elapsed_s) == (0, 3)
    assert record.completion.timings.decode_per_s is None
    assert record.created_at.timestamp() == 1_699_000_000
    assert record.label == "log"


def test_samples_in_parquet_are_the_run_they_were(importer: Importer, history: History) -> None:
    run = make_run(40, 4)
    (id,) = importer.take_in(history, "samples.parquet", samples_parquet(run)).run_ids
    found = history.runs.run(id)
    assert found is not None
    assert found.samples.tobytes() == run.samples.tobytes()
    assert [cell.label for cell in found.cells] == [f"layout {number}" for number in range(4)]


def test_samples_of_several_runs_keep_their_ids(importer: Importer, history: History) -> None:
    runs = [make_run(10), make_run(10)]
    tables = [sample_table(run.samples).append_column("run_id", pa.array([run.id] * 10)) for run in runs]
    data = parquet(pa.concat_tables(tables))
    assert set(importer.take_in(history, "samples.parquet", data).run_ids) == {run.id for run in runs}
    assert "2 were already present" in importer.take_in(history, "samples.parquet", data).sentence


def test_rows_of_llama_bench_in_parquet_are_those_of_its_json(importer: Importer, history: History) -> None:
    (id,) = importer.take_in(history, "rows.parquet", parquet(pa.Table.from_pylist(bench_rows()))).run_ids
    found, expected = history.runs.run(id), run_of(read_rows(json.dumps(bench_rows())))
    assert found is not None
    assert [cell.label for cell in found.cells] == [cell.label for cell in expected.cells]
    np.testing.assert_array_equal(found.samples["prefill_per_s"], expected.samples["prefill_per_s"])


def changed_samples(name: str, value: Any) -> bytes:
    table = sample_table(make_run(4).samples)
    values = [value, *table[name].to_pylist()[1:]]
    return parquet(table.set_column(table.column_names.index(name), name, pa.array(values)))


REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "strange is empty"),
    "blanks": (b" \n\t ", "strange is empty"),
    "prose": (b"Once upon a time there was a benchmark.", "Known formats: .*a candidate log"),
    "HTML": (b"<html><script>alert(1)</script>", "unknown format"),
    "an image": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "not UTF-8 text"),
    "half a JSON": (b'{"n_prompt": 5', "line 1"),
    "a JSON of others": (b'{"name": "x"}', "line 1|n_prompt"),
    "a zip of others": (b"PK\x05\x06" + bytes(18), "it should contain run.json"),
    "half a zip": (run_bytes(make_run())[:200], "cannot be read as a Logitbench run"),
    "half a trial": (trial_bytes(make_trial())[:500], "cannot be read as a trial"),
    "half a Parquet": (samples_parquet(make_run(4))[:-20], "cannot be read as Parquet"),
    "a Parquet of others": (parquet(pa.table({"wage": [1.0]})), "neither samples"),
    "a Parquet without rows": (parquet(pa.table({"wage": pa.array([], pa.float64())})), "no rows"),
    "samples with an infinity": (changed_samples("ttft_s", float("inf")), "row 0: ttft_s is infinite"),
    "samples with a word": (parquet(pa.table({name: ["fast"] for name in ALWAYS})), "fast"),
    "samples in a future age": (changed_samples("started_at", 1e300), "after the year 9999"),
    "rows with NaN": (parquet(pa.Table.from_pylist([{"n_prompt": 1, "avg_ts": float("nan")}])), "avg_ts"),
    "rows with giant numbers": (json.dumps([row(n_gen=10**30)]).encode(), "n_gen"),
    "a trial as JSON of an earlier version": (
        b'{"id": "x", "completion": {"text": "x"}}',
        "as JSON of an earlier version.*export the trial again",
    ),
    "steps as CSV": (to_csv(make_trial()), "export the trial as an archive"),
    "samples as CSV": (b"label,cell,round,position\n", "export the run as a file"),
    "llama-bench's table for people": (b"| model | size |\n| --- | --- |\n", "-o jsonl"),
    "candidates without a token": (CANDIDATES.splitlines()[0].encode(), "no sampled token"),
    "candidates of a giant vocabulary": (CANDIDATES.replace("28705", "987654321").encode(), "no vocabulary has more"),
    "candidates in another age": (CANDIDATES.replace("1699000000", "999999999999").encode(), "not a valid time"),
    "a block that breaks off": (block(1).partition("comp_tokens")[0].encode(), "line 1: this block"),
    "lines that contradict": (LINES.encode() + b"tokens: many per s 5\n", "line 3"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_known_or_damaged_is_refused(importer: Importer, history: History, what: str) -> None:
    data, reason = REFUSED[what]
    for act in (importer.recognise, lambda name, data: importer.take_in(history, name, data)):
        with pytest.raises(EngineError, match=reason):
            act("strange", data)
    assert (history.runs.recent(), history.recent()) == ([], [])


def test_names_are_shown_as_they_are(importer: Importer, history: History) -> None:
    taken = importer.take_in(history, NASTY, (block(1) + block(2)).encode())
    assert history.runs.recent()[0].name == NASTY
    assert taken.run_ids


def test_a_file_that_is_too_large_is_refused(importer: Importer, tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(EngineError, match="bytes"):
        importer.recognise("large.csv", path)
