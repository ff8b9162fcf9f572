"""Comparison of the cells' answers: each way of computing is asked only once."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from engine.bench.measurement.answers import answers
from engine.bench.measurement.target import EngineTarget, Target
from engine.bench.measurement.target_pool import TargetPool
from engine.bench.planning.plan import PlannedCell
from engine.bench.planning.prompts import sample_prompts
from engine.bench.running.comparing import compared_answers
from engine.bench.running.runner import first_record
from tests.engine.bench.cell_maker import make_cell


@pytest.mark.slow
def test_cells_that_compute_alike_are_asked_once(story_model: Path) -> None:
    pools: list[dict[str, Any]] = [
        {"parallel": 1},
        {"parallel": 4},
        {"parallel": 4, "type_k": "q8_0", "flash_attn": True},
    ]
    cells = [make_cell(story_model, number, pool) for number, pool in enumerate(pools)]
    asked = []
    with closing(TargetPool()) as targets:

        def target_of(cell: PlannedCell) -> Target:
            asked.append(cell.number)
            return targets.target(cell)

        records = list(compared_answers([(cell, first_record(cell)) for cell in cells], target_of, 60))
        assert asked == [0, 2]
        assert [record.number for record in records] == [0, 1, 2]
        assert records[0].facts["kl_max"] == 0 and records[1].facts == records[0].facts
        assert records[2].facts["kl_max"] > 0
        opened = [targets.target(cell) for cell in cells[:2]]
        assert all(isinstance(target, EngineTarget) for target in opened)
        alone, ready_for_four = (answers(target.engine, sample_prompts()[:2]) for target in opened)  # type: ignore[attr-defined]
        assert alone.greedy == ready_for_four.greedy
        assert (alone.top_logprobs == ready_for_four.top_logprobs).all()
