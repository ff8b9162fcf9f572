"""Synthetic runs, for tests and for the processes that tests start."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from engine.history import History
from engine.runs import CellRecord, RunRecord
from engine.samples import FLAGS, METRICS, SAMPLE, SYSTEM_NOISE, Samples
from tests.engine.history.trial_maker import uuid7


def make_samples(num_samples: int, num_cells: int = 2, *, first: int = 0, seed: int = 0) -> Samples:
    """Return samples at successive positions with every field filled; a fifth of the figures are not measured (NaN)."""
    random = np.random.default_rng(seed)
    samples = np.zeros(num_samples, SAMPLE)
    samples["position"] = np.arange(first, first + num_samples)
    samples["cell"] = samples["position"] % num_cells
    samples["round"] = samples["position"] // num_cells
    samples["started_at"] = 1_790_000_000 + 1.1 * samples["position"]
    samples["duration_s"] = 1 + random.random(num_samples)
    samples["flag"] = random.integers(0, len(FLAGS), num_samples)
    samples["is_anchor"] = random.random(num_samples) < 0.1
    samples["is_replaced"] = random.random(num_samples) < 0.1
    for name in (*(metric.name for metric in METRICS), *SYSTEM_NOISE):
        figures = random.lognormal(0, 3, num_samples)
        samples[name] = np.where(random.random(num_samples) < 0.2, np.nan, figures)
    return samples


def make_cell(number: int, **changes: Any) -> CellRecord:
    """Return a measured cell; `changes` replace its fields."""
    cell = CellRecord(
        number=number,
        label=f"{number + 1}x2",
        settings={"layout": f"{number + 1}x2", "threads": 2, "flash_attn": None, "model": "/models/story.gguf"},
        status="done",
        facts={"load_warm_s": 0.25, "repetitions": 3.0},
    )
    return replace(cell, **changes)


def make_run(num_samples: int = 12, num_cells: int = 2, **changes: Any) -> RunRecord:
    """Return a finished run; `changes` replace its fields."""
    run = RunRecord(
        id=uuid7(),
        created_at=datetime.now(UTC),
        name="two layouts",
        question="speed",
        status="done",
        plan={"model": "/models/story.gguf", "axes": {"layout": ["1x2", "2x1"]}, "rounds": 8},
        machine={"hash": "ab12", "cpu": "Reference", "num_cores": 2},
        versions={"llama_cpp_python": "0.3.36"},
        cells=tuple(make_cell(number) for number in range(num_cells)),
        samples=make_samples(num_samples, num_cells),
        outcome={"sentence": "2x1 is 1.32 times as fast.", "share": 0.5},
    )
    return replace(run, **changes)


def assert_same_run(found: RunRecord | None, expected: RunRecord) -> None:
    """Assert that every field is equal, and every sample bit by bit."""
    assert found is not None
    assert {**vars(found), "samples": None} == {**vars(expected), "samples": None}
    assert_same_samples(found.samples, expected.samples)


def assert_same_samples(found: Samples, expected: Samples) -> None:
    """Assert that every figure of every sample is equal, with NaN equal to NaN."""
    assert found.dtype == SAMPLE
    for name in SAMPLE.names or ():
        np.testing.assert_array_equal(found[name], expected[name], strict=True, err_msg=name)


def keep_run(history: History, **changes: Any) -> str:
    """Save a run and return its id."""
    run = make_run(**changes)
    history.runs.keep(run)
    return run.id


def cells_with(**settings: Any) -> tuple[Any, ...]:
    """Return one cell with these settings in addition to its usual ones."""
    cell = make_cell(0)
    return (replace(cell, settings={**cell.settings, **settings}),)
