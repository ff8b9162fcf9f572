"""Fit: the grid matches the estimate, the longest context is the last that fits, and the example of the notes works."""

import json
import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from engine.errors import ConfigError
from engine.models import fit, memory
from engine.models.fit import (
    SEQUENCES,
    FitRow,
    cache_arithmetic,
    contexts_for,
    fit_row,
    grid,
    longest_context,
    machine_memory,
    notes_example,
)
from engine.models.fit_report import fit_report
from engine.models.memory import estimate
from engine.models.planned import planned_model
from engine.models.reading import read_model
from engine.models.shapes import SHAPES
from engine.specs import PoolSpec

MISTRAL = planned_model("mistral-7b", SHAPES["mistral-7b"], "Q4_K_M")
GEMMA = planned_model("gemma-3-1b", SHAPES["gemma-3-1b"], "Q4_K_M")


@pytest.fixture
def eight_gb(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fit, memory):
        monkeypatch.setattr(module, "available_memory", lambda: 8_000_000_000)


def test_a_row_is_the_estimate_of_the_whole_pool() -> None:
    spec = PoolSpec(instances=2, share_weights=True, type_k="q8_0")
    row = fit_row(MISTRAL, 4096, 6, spec)
    needed = estimate(MISTRAL, replace(spec, n_ctx=4096, parallel=3))
    assert row.total == needed.total == row.weights + row.kv + row.buffers + row.process
    assert (row.instances, row.kv, row.fits) == (2, 2 * needed.kv, needed.fits)
    assert fit_row(MISTRAL, 4096, 1, spec).instances == 1
    assert fit_row(MISTRAL, 512, 600, spec).instances == 3


def test_the_grid_has_every_context_for_every_number_of_sequences() -> None:
    rows = grid(GEMMA)
    assert [(row.sequences, row.n_ctx) for row in rows] == [(n, c) for n in SEQUENCES for c in contexts_for(GEMMA)]
    assert contexts_for(GEMMA) == [512, 1024, 2048, 4096, 8192, 16_384, 32_768]
    assert contexts_for(replace(GEMMA, n_ctx_train=3000)) == [512, 1024, 2048, 3000]
    assert contexts_for(replace(GEMMA, n_ctx_train=100)) == [100]
    assert [row.n_ctx for row in grid(GEMMA, [256, 300], [2])] == [256, 300]
    for row in rows:
        assert (row.kv_windowed < row.kv) == (row.n_ctx > 1024)
    with pytest.raises(ConfigError, match="sequences = 0: must be a whole number from 1"):
        grid(GEMMA, [512], [0])
    with pytest.raises(ConfigError, match="n_ctx = 3"):
        grid(GEMMA, [3])


@pytest.mark.usefixtures("eight_gb")
def test_the_longest_context_is_the_last_that_fits() -> None:
    spec = PoolSpec(share_weights=True)
    for sequences in (1, 2, 8):
        found = longest_context(MISTRAL, sequences, spec)
        assert found % 256 == 0
        assert 256 < found < MISTRAL.n_ctx_train
        assert fit_row(MISTRAL, found, sequences, spec).fits
        assert not fit_row(MISTRAL, found + 256, sequences, spec).fits
    assert longest_context(MISTRAL, 256, spec) == 0
    assert longest_context(GEMMA, 1, spec) == GEMMA.n_ctx_train
    assert longest_context(replace(GEMMA, n_ctx_train=300), 1, spec) == 300
    assert longest_context(planned_model("13b", SHAPES["llama-2-13b"], "F16"), 1) == 0


def test_the_example_of_the_notes_is_three_terabytes_and_three_times_the_weights() -> None:
    model, row, says = notes_example()
    assert row.kv == 118 * 48 * 128 * 2 * 2 * 512 * 2048 == 3_040_836_845_568
    assert 5.3e11 < model.num_parameters < 5.5e11
    assert row.weights == 2 * model.num_parameters + 2 * (2 * 118 + 1) * model.n_embd
    assert round(row.kv / row.weights) == 3
    assert not row.fits
    assert "118 layers × 48 heads × 128 numbers, keys and values in f16: 2.90 MB per token" in says
    assert "× 512 sequences × 2,048 tokens = 3.04 TB, 2.8 times the weights of 1.08 TB" in says


def test_the_arithmetic_leaves_out_what_is_not_the_same_in_all_layers() -> None:
    row = fit_row(MISTRAL, 512, 1)
    assert "times the weights" not in cache_arithmetic(MISTRAL, row)
    mixed = replace(MISTRAL, n_head_kv=(8, 4) * 16)
    text = cache_arithmetic(mixed, fit_row(mixed, 512, 1), PoolSpec(type_k="q8_0"))
    assert text.startswith("32 layers, keys and values in q8_0 and f16: ")


def test_this_machine_is_described_with_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine_memory()
    assert found.total == psutil.virtual_memory().total
    assert 0 < found.available <= found.total
    monkeypatch.setattr(fit, "memory_limit", lambda: 1 << 62)
    assert machine_memory().limit is None
    monkeypatch.setattr(fit, "memory_limit", lambda: 1 << 20)
    assert machine_memory().limit == 1 << 20


@pytest.mark.usefixtures("eight_gb")
def test_the_report_says_it_in_words_and_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "memory_limit", lambda: 1 << 33 if os.name == "posix" else None)
    report = fit_report(GEMMA, PoolSpec(parallel=2, n_ctx=1024), [512, 32_768], [1, 16])
    text = str(report)
    assert text.startswith("gemma-3-1b: weights ")
    assert "It fits." in text
    assert "limited to 8.59 GB by the control group; 8.00 GB is available." in text
    lines = text.splitlines()
    assert lines[3].split() == ["sequences", "512", "tokens", "32,768", "tokens"]
    assert lines[4].split()[0] == "1"
    assert lines[5].split()[0] == "16"
    assert "(" not in lines[4]
    assert lines[5].rstrip().endswith("GB)")
    assert "see only a sliding window" in text
    values = json.loads(json.dumps(report.to_dict()))
    assert [FitRow(**row) for row in values["grid"]] == report.rows
    assert values["longest_context"][0] == {"sequences": 1, "n_ctx": 32_768}
    assert 0 < values["longest_context"][1]["n_ctx"] < 32_768
    assert values["estimate"]["total"] == report.base.total
    assert values["machine"] == {"total": machine_memory().total, "limit": 1 << 33, "available": 8_000_000_000}


def test_a_file_is_reported_too(story_model: Path) -> None:
    report = fit_report(read_model(story_model))
    assert report.base.fits
    assert str(report).splitlines()[-1].split()[0] == str(SEQUENCES[-1])
    assert report.rows[0].sequences == 1
