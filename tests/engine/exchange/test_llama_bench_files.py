"""Import and export of llama-bench rows: every format and version, correct spreads, and no partial reads."""

import csv
import io
import json
import sqlite3
import statistics
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import ConfigError
from engine.exchange.llama_bench_files import MOST_BYTES, read_run, run_of, sidecar, write_run
from engine.exchange.llama_bench_rows import DEFAULTS, FIELDS
from engine.exchange.llama_bench_text import FORMATS, Format, read_rows, write_rows
from engine.runs import CellRecord, RunRecord
from engine.samples import make_sample

LONG_NS = [30_000_000_000, 31_500_000_000, 28_700_000_000, 30_400_000_000, 29_300_000_000]
"""Samples of half a minute, whose squares overflow 64 bits."""

COMPARED = {
    *("cpu_info", "gpu_info", "backends", "n_gpu_layers", "n_cpu_moe", "tensor_buft_overrides", "model_filename"),
    *("model_type", "n_batch", "n_ubatch", "embeddings", "cpu_mask", "cpu_strict", "poll", "n_threads", "type_k"),
    *("type_v", "load_mode", "no_kv_offload", "split_mode", "main_gpu", "tensor_split", "flash_attn", "n_prompt"),
    *("n_gen", "n_depth", "fit_target", "fit_min_ctx", "build_commit", "test_time", "avg_ts"),
}
"""Fields without which compare-llama-bench.py refuses a file."""


def row(**values: Any) -> dict[str, Any]:
    """Return a row as llama-bench prints it, including its incorrect spread."""
    given = {
        **DEFAULTS,
        "build_commit": "0c1e570",
        "build_number": 4321,
        "cpu_info": "AMD EPYC",
        "model_filename": 'models/it\'s; a "model", 7B.gguf',
        "model_type": "llama 7B Q4_K - Medium",
        "n_threads": 4,
        "n_gen": 128,
        "test_time": "2026-01-02T03:04:05Z",
        "samples_ns": LONG_NS,
        "samples_ts": [1e9 * 128 / each for each in LONG_NS],
        "stddev_ns": 3722529745,
    }
    return given | values


def as_sql(rows: list[dict[str, Any]]) -> str:
    """Return the rows as `llama-bench -o sql` prints them: quotes inside a value are not doubled."""
    text = "CREATE TABLE IF NOT EXISTS llama_bench (\n  build_commit TEXT\n);\n\n"
    for each in rows:
        values = ", ".join(f"'{int(v) if isinstance(v, bool) else v}'" for v in (each[name] for name in FIELDS))
        text += f"INSERT INTO llama_bench ({', '.join(FIELDS)}) VALUES ({values});\n"
    return text


def with_averages(given: dict[str, Any]) -> dict[str, Any]:
    return given | {"avg_ns": 30_000_000_000, "avg_ts": 128 / 30, "stddev_ts": 0.15}


WRITERS: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "json": lambda rows: json.dumps(rows),
    "jsonl": lambda rows: "\n".join(map(json.dumps, rows)),
    "csv": lambda rows: write_rows(map(with_averages, rows), "csv"),
    "sql": lambda rows: as_sql([with_averages(each) for each in rows]),
}


# Import


@pytest.mark.parametrize("form", FORMATS)
def test_every_form_gives_the_same_cells(form: Format) -> None:
    rows = [row(n_prompt=512, n_gen=0), row(n_depth=1024, n_threads=8)]
    run = read_run(WRITERS[form](rows).encode(), "from a friend")
    assert (run.name, run.origin, run.status) == ("from a friend", "llama-bench", "done")
    assert [cell.label for cell in run.cells] == ["pp512 · n_threads 4", "tg128 @ d1024 · n_threads 8"]
    assert run.cells[1].settings["model"] == 'models/it\'s; a "model", 7B.gguf'
    assert [cell.settings["layout"] for cell in run.cells] == ["1x4", "1x8"]
    assert (run.cells[1].settings["depth"], run.cells[0].settings["num_prompt"]) == (1024, 512)
    assert run.created_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert run.machine["cpu"] == "AMD EPYC"
    assert run.versions == {"llama.cpp": "0c1e570"}


def test_samples_become_samples_and_the_spread_is_computed_from_them() -> None:
    run = run_of(read_rows(json.dumps([row()])))
    np.testing.assert_allclose(run.samples["duration_s"], np.array(LONG_NS) / 1e9)
    np.testing.assert_allclose(run.samples["decode_per_s"], [128e9 / each for each in LONG_NS])
    np.testing.assert_allclose(run.samples["tpot_s"] * run.samples["tokens_per_s"], 1)
    assert run.samples["round"].tolist() == [0, 1, 2, 3, 4]
    assert np.isnan(run.samples["prefill_per_s"]).all()
    assert np.diff(run.samples["started_at"]) == pytest.approx(np.array(LONG_NS[:-1]) / 1e9)
    stored = run.cells[0].settings["llama_bench"]
    assert stored["stddev_ns"] == int(statistics.stdev(LONG_NS))
    assert stored["stddev_ts"] == pytest.approx(statistics.stdev(128e9 / each for each in LONG_NS))


def test_a_row_of_both_has_neither_speed_alone() -> None:
    samples = run_of(read_rows(json.dumps([row(n_prompt=512, n_gen=128, samples_ns=[10**10])]))).samples
    assert samples["end_to_end_per_s"] == pytest.approx([12.8])
    assert np.isnan(samples["decode_per_s"]).all() and np.isnan(samples["prefill_per_s"]).all()


def test_a_row_without_samples_counts_as_one_of_its_average() -> None:
    run = read_run(WRITERS["csv"]([row()]).encode())
    assert run.samples["decode_per_s"] == pytest.approx([128 / 30])
    assert run.cells[0].facts == {"stddev_per_s": 0.15}


def test_old_versions_are_read() -> None:
    old = {
        "build_commit": "5c53920",
        "cuda": True,
        "f16_kv": True,
        "use_mmap": False,
        "flash_attn": True,
        "model_filename": "old.gguf",
        "n_prompt": 0,
        "n_gen": 16,
        "n_threads": 8,
        "mul_mat_q": True,
        "test_time": "2023-08-23T12:09:01Z",
        "samples_ns": [10**9],
    }
    (found,) = read_rows(json.dumps(old))
    assert (found["backends"], found["type_k"], found["load_mode"], found["flash_attn"]) == ("CUDA", "f16", "none", 1)
    assert found["n_ubatch"] == 512
    assert set(found) == {*FIELDS, "samples_ns", "samples_ts"}


def test_a_dump_of_the_table_is_read() -> None:
    """sqlite3's .dump writes no column names, and writes numbers without quotes."""
    database = sqlite3.connect(":memory:")
    database.executescript(write_rows([with_averages(row())], "sql"))
    dumped = "\n".join(database.iterdump())
    database.close()
    (found,) = read_rows(dumped)
    assert (found["model_filename"], found["n_threads"]) == ('models/it\'s; a "model", 7B.gguf', 4)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON, SQL"),
        ("hello\nworld", "line 1: not JSON, SQL"),
        ('[{"n_gen": 1},', "line 1: not JSON.*interrupted"),
        ('{"n_gen": 16, "avg_ts": 1}\n{"n_gen": ', "line 2: not JSON"),
        ("[1, 2]", "row 1: int instead of a"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no llama-bench rows"),
        (json.dumps([row(n_gen=0)]), "row 1: n_prompt, n_gen and n_depth"),
        (json.dumps([row(), row(n_threads="many")]), "row 2: n_threads = 'many': must be a whole number"),
        (json.dumps([row(n_threads=4.5)]), "n_threads = 4.5"),
        (json.dumps([row(cpu_strict="perhaps")]), "true or false"),
        (json.dumps([row(model_filename=["a"])]), "must be text"),
        (json.dumps([row(model_type="x" * 5000)]), "model_type"),
        (json.dumps([row(samples_ns=[1, -1])]), "list of nanoseconds"),
        (json.dumps([row(samples_ns=[10**9, 0.5])]), "list of nanoseconds"),
        (json.dumps([row(samples_ns="1, 2")]), "list of nanoseconds"),
        (json.dumps([row(samples_ns=[float("nan")])]), "list of nanoseconds"),
        (json.dumps([row(samples_ns=[])]), "neither samples_ns nor a speed"),
        (json.dumps([row(samples_ns=[], avg_ts=float("inf"))]), "avg_ts = inf"),
        ("n_prompt,n_gen,avg_ts\n1,2", "line 2: 2 values for 3 fields"),
        ('n_prompt,n_gen,avg_ts\n1,2,"3', "not CSV"),
        ("INSERT INTO llama_bench (n_gen, avg_ts) VALUES ('1', '2'", "line 1: the values"),
        ("--\nINSERT INTO llama_bench (n_gen, avg_ts) VALUES ('1');", "line 2: 1 values for 2"),
        ("CREATE TABLE llama_bench (n_gen INTEGER);", "no llama-bench rows"),
    ],
)
def test_a_malformed_file_is_refused_with_line_and_reason(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_run(text.encode())


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ConfigError, match="line 2: not UTF-8 text: byte 0xff"):
        read_run(b"[\n\xff]")
    with pytest.raises(ConfigError, match="the limit is"):
        read_run(bytes(MOST_BYTES + 1))


def test_a_value_that_looks_like_a_statement_is_a_value() -> None:
    hostile = "x'); INSERT INTO llama_bench (n_gen) VALUES ('1"
    text = write_rows([with_averages(row(model_filename=hostile))], "sql")
    (found,) = read_rows(text)
    assert found["model_filename"] == hostile


# Export


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_what_came_in_goes_out_as_it_was_but_for_the_spread(form: Format) -> None:
    rows = [row(n_prompt=512, n_gen=0), row()]
    written = write_run(read_run(json.dumps(rows).encode()), form)
    found = json.loads(written) if form == "json" else [json.loads(line) for line in written.splitlines()]
    for before, after in zip(rows, found, strict=True):
        repaired = {"avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "samples_ts"}
        assert {k: v for k, v in after.items() if k not in repaired} == {
            k: v for k, v in before.items() if k not in repaired
        }
        assert after["stddev_ns"] == int(statistics.stdev(LONG_NS))


def measured(story_model: Path) -> RunRecord:
    """Run of our own: one stream, and two more configurations that no llama-bench row can represent."""
    shared = {"model": str(story_model), "arm": "pool", "n_batch": 512, "n_ubatch": 256, "type_k": "f16"}
    shared |= {"flash_attn": None, "load": "mmap", "share_weights": True, "num_prompt": 64, "num_generated": 32}
    cells = (
        CellRecord(number=0, label="one", settings=shared | {"layout": "1x2", "parallel": 1, "depth": 8}),
        CellRecord(number=1, label="two", settings=shared | {"layout": "2x1", "parallel": 1}),
        CellRecord(number=2, label="many", settings=shared | {"layout": "1x2", "parallel": 8}),
    )
    samples = np.concatenate(
        [
            make_sample(cell=cell, round=number, started_at=1.7e9, prefill_per_s=640.0, decode_per_s=40.0 + number)
            for number in range(3)
            for cell in range(3)
        ]
    )
    run = run_of(read_rows(json.dumps([row()])))
    machine = {"cpu": "Test", "llama": {"commit": "abcdef1"}}
    return replace(run, cells=cells, samples=samples, machine=machine, origin="measured")


def test_a_run_of_ours_becomes_a_row_for_prompt_and_generation(story_model: Path) -> None:
    prompt, tokens = (json.loads(line) for line in write_run(measured(story_model), "jsonl").splitlines())
    assert (prompt["n_prompt"], prompt["n_gen"], prompt["n_depth"]) == (64, 0, 8)
    assert (tokens["n_prompt"], tokens["n_gen"], tokens["n_depth"]) == (0, 32, 72)
    assert prompt["samples_ns"] == [100_000_000] * 3
    assert tokens["samples_ts"] == pytest.approx([40, 41, 42])
    assert (tokens["build_commit"], tokens["cpu_info"], tokens["repack"]) == ("abcdef1", "Test", False)
    assert tokens["model_size"] > 1_000_000
    assert list(tokens) == [*FIELDS, "samples_ns", "samples_ts"]


@pytest.mark.parametrize("form", FORMATS)
def test_every_form_can_be_read_again(form: Format, story_model: Path) -> None:
    text = write_run(measured(story_model), form)
    again = read_run(text.encode())
    assert [cell.label for cell in again.cells] == ["pp64 @ d8", "tg32 @ d72"]
    medians = [np.median(again.samples["decode_per_s"][again.samples["cell"] == 1])]
    assert medians == pytest.approx([41], rel=1e-3)


def test_the_comparing_script_finds_its_fields_and_types(story_model: Path) -> None:
    run = measured(story_model)
    assert set(json.loads(write_run(run, "jsonl").splitlines()[0])) >= COMPARED
    (head, *lines) = csv.reader(io.StringIO(write_run(run, "csv")))
    assert set(head) >= COMPARED
    assert len(lines) == 2
    database = sqlite3.connect(":memory:")
    database.executescript(write_run(run, "sql"))
    found = database.execute("SELECT n_gen, avg_ts, typeof(avg_ts), typeof(n_gen) FROM llama_bench").fetchall()
    database.close()
    assert found[1][1:] == (pytest.approx(41, rel=1e-3), "real", "integer")


def test_cells_that_no_row_can_tell_of_are_in_the_sidecar(story_model: Path) -> None:
    run = measured(story_model)
    beside = json.loads(sidecar(run))
    assert [cell["is_exported"] for cell in beside["cells"]] == [True, False, False]
    assert beside["machine"]["cpu"] == "Test"
    with pytest.raises(ConfigError, match="one process and one stream"):
        write_run(replace(run, cells=run.cells[1:]), "json")
