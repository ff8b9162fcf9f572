"""Trend points: the runs of one configuration and no other, with the figures that the benchmark gives them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from engine.bench.analysis.summary import by_round, summarise
from engine.history import History
from engine.runs import RunRecord
from tests.engine.history.run_maker import make_cell, make_run, make_samples

START = datetime(2026, 10, 1, tzinfo=UTC)
PLAN = {"workload": {"asked": "tokens", "num_prompt": 128}, "rounds": 8}


def kept(history: History, day: int, *, seed: int = 0, plan: dict[str, Any] = PLAN, **settings: Any) -> RunRecord:
    """Save a run of two configurations on that day and return it; `settings` change both."""
    cells = tuple(
        make_cell(number, settings={**make_cell(number).settings, **settings, "parallel": number}) for number in (0, 1)
    )
    run = make_run(
        created_at=START + timedelta(days=day),
        samples=make_samples(80, 2, seed=seed),
        cells=cells,
        plan=plan,
        machine={"hash": f"machine {day % 2}", "cpu": "Reference"},
        versions={"llama-cpp-python": f"0.3.{day}"},
    )
    history.runs.keep(run)
    return run


def test_each_point_is_the_run_as_the_benchmark_sums_it_up(history: History) -> None:
    runs = {run.id: run for run in (kept(history, day, seed=day) for day in (3, 1, 2))}
    points = history.find.trend(next(iter(runs)), 1, "decode_per_s")
    assert [point.created_at for point in points] == [START + timedelta(days=day) for day in (1, 2, 3)]
    for point in points:
        run = runs[point.run_id]
        interval = summarise(run).cells[1].metrics["decode_per_s"]
        assert (point.value, point.low, point.high) == pytest.approx(interval[:3])
        assert point.by_round == pytest.approx(by_round(run.samples, 1, "decode_per_s"))
        assert (point.machine_hash, point.machine, point.versions) == (run.machine["hash"], run.machine, run.versions)


def test_only_the_same_configuration_is_in_a_trend(history: History) -> None:
    run = kept(history, 0)
    moved = kept(history, 1, model="/elsewhere/story.gguf")
    kept(history, 2, model="/models/other.gguf")
    kept(history, 3, n_ctx=4096)
    kept(history, 4, flash_attn=True)
    kept(history, 5, plan={"workload": {"asked": "prompts", "prompts": ["a"]}})
    longer = kept(history, 6, plan={"workload": {"asked": "tokens", "num_prompt": 512}, "rounds": 20})
    history.runs.delete(kept(history, 7).id)
    points = history.find.trend(run.id, 0, "tokens_per_s")
    assert [point.run_id for point in points] == [run.id, moved.id, longer.id]


def test_a_point_has_the_name_and_the_note_of_its_run(history: History) -> None:
    first, second = kept(history, 0), kept(history, 1)
    history.marks.note("run", second.id, "after the BIOS update")
    points = history.find.trend(first.id, 0, "tokens_per_s")
    assert [(point.name, point.note) for point in points] == [
        (first.name, ""), (second.name, "after the BIOS update"),
    ]  # fmt: skip


def test_what_the_rows_of_llama_bench_say_besides_is_no_setting(history: History) -> None:
    first = kept(history, 0, row={"test_time": "2026-10-01"})
    second = kept(history, 1, row={"test_time": "2026-10-02"})
    assert [point.run_id for point in history.find.trend(second.id, 0, "ttft_s")] == [first.id, second.id]


def test_a_run_without_the_metric_is_left_out(history: History) -> None:
    measured, other = kept(history, 0), kept(history, 1)
    samples = make_samples(20, 2)
    samples["goodput_per_s"] = np.nan
    without = make_run(created_at=START, samples=samples, cells=other.cells, plan=PLAN)
    history.runs.keep(without)
    found = [point.run_id for point in history.find.trend(without.id, 0, "goodput_per_s")]
    assert found == [measured.id, other.id]


def test_a_run_that_has_the_configuration_twice_is_one_point(history: History) -> None:
    run = make_run(plan=PLAN, cells=(make_cell(0), make_cell(1, settings=make_cell(0).settings)))
    history.runs.keep(run)
    for cell in (0, 1):
        (point,) = history.find.trend(run.id, cell, "tokens_per_s")
        assert point.value == pytest.approx(summarise(run).cells[cell].metrics["tokens_per_s"].value)
