"""Time breakdown per token: parts that add up, and a sentence that claims no more than was measured."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.bench.analysis.time_breakdown import time_breakdown
from engine.bench.baselines.arms import open_target
from engine.bench.measurement.target_pool import TargetPool
from engine.bench.measurement.token_parts import PARTS, PartTotals, seconds_of_pool
from engine.bench.planning.cells import cells_of
from engine.bench.planning.plan import Plan
from engine.bench.running.runner import Runner
from engine.runs import CellRecord, RunRecord
from engine.samples import Samples, make_sample, no_samples

pytestmark = pytest.mark.usefixtures("short_samples")

MS = 1e-3


def facts(**milliseconds: float) -> dict[str, float]:
    """Return the facts of a cell with one token; parts that are not given are 0."""
    totals = PartTotals()
    totals.add({name: MS * value for name, value in milliseconds.items()}, MS * sum(milliseconds.values()), 1)
    return totals.facts()


def run(arms: dict[str, dict[str, float]], samples: Samples | None = None) -> RunRecord:
    cells = tuple(
        CellRecord(number=number, label=arm, settings={"arm": arm}, facts=given)
        for number, (arm, given) in enumerate(arms.items())
    )
    return RunRecord(
        id="run",
        created_at=datetime.now(UTC),
        name="",
        question="python",
        status="done",
        plan={},
        machine={},
        versions={},
        cells=cells,
        samples=no_samples() if samples is None else samples,
    )


def test_parts_add_up_and_what_is_left_is_the_rest() -> None:
    totals = PartTotals()
    assert totals.facts() == {}
    totals.add({"prefill": 1.0, "decode": 5.0}, 8.0, 10)
    totals.add({"prefill": 1.0, "decode": 7.0}, 8.0, 10)
    found = totals.facts()
    assert (found["prefill_part_s"], found["decode_part_s"], found["rest_part_s"]) == pytest.approx((0.1, 0.6, 0.1))
    (bar,) = time_breakdown(run({"pool": found})).bars
    assert [part.name for part in bar.parts] == list(PARTS)
    assert bar.seconds_per_token == pytest.approx(0.8)
    assert sum(part.share for part in bar.parts) == pytest.approx(1)
    assert bar.share_outside == pytest.approx(1 / 8)


def test_the_worker_s_figures_are_divided_and_what_is_outside_its_loop_is_transport() -> None:
    gained = {"decode_s": 6.0, "prefill_s": 2.0, "loop_s": 7.0, "sample_s": 0.5, "tokenise_s": 0.1}
    found = seconds_of_pool(gained, 7.5)
    assert found["decode"] == 4.0
    assert found["transport"] == 0.5
    totals = PartTotals()
    totals.add(found, 7.5, 1)
    assert totals.facts()["rest_part_s"] == pytest.approx(0.4)


def test_the_sentence_names_what_python_costs() -> None:
    arms = {
        "llama-bench": facts(prefill=2, decode=8),
        "pool": facts(prefill=2, decode=8, sample=0.1, rest=0.1),
        "create_completion": facts(prefill=2, decode=8, rest=10),
    }
    samples = [
        make_sample(cell=cell, round=number, decode_per_s=per_s)
        for number in range(8)
        for cell, per_s in enumerate((100.0, 98.0, 50.0))
    ]
    said = time_breakdown(run(arms, np.concatenate(samples))).sentence
    assert "Python costs at most 2.0 % here: this pool spends 10.0 ms of 10.2 ms per token inside llama_decode" in said
    assert "create_completion spends 10.0 ms of 20.0 ms there (50.0 % outside)" in said
    assert said.endswith("Decode compared with llama-bench: 0.98 times (0.98 to 0.98).")


def test_without_the_yardstick_nothing_is_said_of_it() -> None:
    said = time_breakdown(run({"pool": facts(decode=9, rest=1), "loop": {}})).sentence
    assert said.startswith("Python costs at most 10.0 % here")
    assert "llama-bench" not in said


def test_a_run_without_parts_says_nothing() -> None:
    assert time_breakdown(run({"pool": {"repetitions": 1.0}})) == ((), "")


class Kept:
    """Reporter that keeps the last record of each cell, and all samples."""

    def __init__(self) -> None:
        self.records: dict[int, CellRecord] = {}
        self.samples: list[Samples] = []

    def cell(self, record: CellRecord) -> None:
        self.records[record.number] = record

    def sample(self, sample: Samples) -> None:
        self.samples.append(sample)

    def replaced(self, positions: list[int]) -> None:
        """Ignore the call: a machine with other work may drift, and repeated measurements do not matter here."""


@pytest.mark.slow
def test_a_real_run_over_the_arms_breaks_the_time_of_a_token_down(story_model: Path) -> None:
    plan = Plan(
        question="python",
        model=str(story_model),
        axes={"arm": ("loop", "pool", "create_completion")},
        pool={"instances": 1, "threads": 1},
        workload={"num_prompt": 32, "num_generated": 32},
        rounds=1,
        anchor=1,
    )
    kept: Any = Kept()
    targets = TargetPool(open_target)
    runner = Runner(plan, cells_of(plan), targets, kept)
    try:
        assert runner.run() == "done"
    finally:
        targets.close()
    arms = {record.label: dict(record.facts) for record in runner.records}
    shape = time_breakdown(run({cell.settings["arm"]: dict(cell.facts) for cell in runner.records}))
    assert len(arms) == 3
    outside = {bar.arm: bar.share_outside for bar in shape.bars}
    assert outside["loop"] < outside["create_completion"]
    assert all(0 < share < 1 for share in outside.values())
    assert shape.sentence.startswith("Python costs at most")
