import uuid
from pathlib import Path

import numpy as np
import pytest

from engine.errors import ConfigError
from engine.history import History
from engine.reference import (
    NOTED_BY_HAND,
    TABLES,
    noted_run,
    noted_throughputs,
    read_lines,
    reference_run,
    reference_runs,
    reference_timings,
    table,
)
from engine.runs import RunRecord
from engine.samples import METRICS_BY_NAME


def by_name(name: str) -> RunRecord:
    return next(run for run in reference_runs() if run.name == name)


def rate_of(run: RunRecord, label: str) -> float:
    (number,) = (cell.number for cell in run.cells if cell.label == label)
    return float(np.median(run.samples[run.samples["cell"] == number]["end_to_end_per_s"]))


def test_every_row_of_the_notes_is_there_with_its_source() -> None:
    assert {name: len(table(name)) for name in TABLES} == {
        "generation": 24,
        "throughput": 5,
        "loads": 6,
        "embeddings": 3,
        "candidates": 10,
    }
    assert all(row["source"] in ("note A", "note B") and row["noted"] for name in TABLES for row in table(name))
    assert [row["text"] for row in table("candidates")[:3]] == [" of", " ", " about"]


def test_the_notes_own_speeds_are_tokens_over_seconds_rounded() -> None:
    for row in reference_timings():
        if row.num_tokens and row.seconds:
            assert row.num_tokens / row.seconds == pytest.approx(row.tokens_per_s, rel=0.015)


def test_a_run_for_each_machine_with_an_id_that_stays() -> None:
    runs = {run.name: run for run in reference_runs()}
    assert list(runs) == ["g4dn.xlarge", "inf1.2xlarge", "c7i.4xlarge", "home, 60 GB", "machine of note B"]
    assert all(uuid.UUID(run.id).version == 8 for run in runs.values())
    assert runs["c7i.4xlarge"].id == "b33a0608-89b1-8891-83b0-0278872ed245"
    for run in runs.values():
        assert run.origin == "reference"
        assert reference_run(run.id) is run
        assert len({cell.label for cell in run.cells}) == len(run.cells)
    assert len({run.machine["hash"] for run in runs.values()}) == len(runs)
    assert reference_run("0190b8a0-0000-7000-8000-000000000000") is None


def test_samples_have_the_end_to_end_speed_alone() -> None:
    for run in reference_runs():
        for name in METRICS_BY_NAME:
            is_there = np.isfinite(run.samples[name])
            assert is_there.all() if name == "end_to_end_per_s" else not is_there.any()


def test_cells_are_configurations_by_the_names_of_the_axes() -> None:
    run = by_name("c7i.4xlarge")
    assert [cell.label for cell in run.cells] == ["1 × 4", "1 × 8", "1 × 16", "2 × 8", "4 × 4"]
    assert run.cells[3].settings["quantisation"] == "Q4_K_M"
    assert run.cells[3].facts == {"noted_per_s": 18.67, "noted_memory_gb": 2.7, "num_tokens": 840}
    assert rate_of(run, "2 × 8") == 840 / 45
    twice = next(cell for cell in by_name("g4dn.xlarge").cells if "defaults" in cell.label)
    own = by_name("g4dn.xlarge").samples
    assert own[own["cell"] == twice.number]["end_to_end_per_s"].tolist() == [316 / 97, 452 / 138]


def test_a_run_says_what_was_noted_and_gives_no_verdict() -> None:
    assert by_name("c7i.4xlarge").outcome == {
        "sentence": "As noted, 2 × 8 is the fastest of 5: 18.7 tok/s end to end.",
        "winner": None,
    }
    alone = noted_run(read_lines("4 tok/s"), machine="laptop")
    assert alone.outcome["sentence"] == "As noted, this machine: 4.00 tok/s end to end."


def test_loads_are_facts_and_inference_is_the_speed() -> None:
    llama, mistral = by_name("machine of note B").cells
    assert llama.facts["load_cold_s"] == 11.7
    assert llama.facts["load_warm_s"] == 0.2
    assert "load_cold_s" not in mistral.facts
    assert rate_of(by_name("machine of note B"), llama.label) == 50 / 11.5


def test_what_was_taken_over_names_its_machine() -> None:
    assumed = {noted.machine: (noted.as_machine, noted.as_layout) for noted in noted_throughputs()}
    assert assumed["c7i.2xlarge"] == ("c7i.4xlarge", "1x8")
    assert assumed["c7i.xlarge"] == ("c7i.4xlarge", "1x4")


def test_lines_become_a_run_that_the_history_keeps_once(tmp_path: Path) -> None:
    lines = read_lines("235 tokens in 80s = 2.93 tokens/s (4 threads)\n397 tokens in 56 s, 2x8, 1.7 GB RAM")
    run = noted_run(lines, machine="laptop", model="Mistral-7B-Instruct-v0.2")
    assert run.origin == NOTED_BY_HAND
    assert [cell.label for cell in run.cells] == ["1 × 4", "2 × 8"]
    assert rate_of(run, "1 × 4") == 235 / 80
    assert run.cells[1].facts["noted_memory_gb"] == 1.7
    assert np.isnan(run.samples["pss_bytes"]).all()
    assert noted_run(lines, machine="laptop", model="Mistral-7B-Instruct-v0.2").id == run.id
    assert noted_run(lines, machine="desk", model="Mistral-7B-Instruct-v0.2").id != run.id
    with History.open(tmp_path / "history.duckdb") as history:
        assert history.runs.keep(run)
        assert not history.runs.keep(noted_run(lines, machine="laptop", model="Mistral-7B-Instruct-v0.2"))
        (summary,) = history.runs.recent()
        assert summary.model_name == "Mistral-7B-Instruct-v0.2"


def test_a_noted_run_needs_a_machine_and_a_timing() -> None:
    with pytest.raises(ConfigError, match="need a machine name"):
        noted_run(read_lines("4 tok/s"), machine="  ")
    with pytest.raises(ConfigError, match="at least one line"):
        noted_run((), machine="laptop")
    with pytest.raises(ConfigError, match="200 characters"):
        noted_run(read_lines("4 tok/s"), machine="m" * 201)


def test_a_speed_alone_has_no_seconds() -> None:
    run = noted_run(read_lines("14 t/s"), machine="laptop")
    assert run.samples["end_to_end_per_s"].tolist() == [14]
    assert run.samples["duration_s"].tolist() == [0]
    assert run.cells[0].facts == {"noted_per_s": 14}
