"""Candidates that the settings search chooses from."""

from pathlib import Path

import pytest

from engine.bench.planning.axes import AXES_BY_NAME
from engine.bench.planning.candidates import DEFAULT, DEFAULT_LABEL, METRIC, candidates, default_threads, settings_plan
from engine.bench.planning.plan import GOALS, Goal
from engine.samples import METRICS_BY_NAME


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("cores", [1, 2, 6, 16])
def test_llama_cpps_default_comes_first_and_no_candidate_twice(story_model: Path, goal: Goal, cores: int) -> None:
    plan = settings_plan(story_model, goal, cores=cores)
    cells = candidates(plan)
    assert [cell.number for cell in cells] == list(range(len(cells)))
    default = cells[DEFAULT]
    assert default.label == DEFAULT_LABEL
    assert (default.pool.instances, default.pool.threads, default.pool.parallel) == (1, default_threads(), 1)
    assert not default.pool.share_weights
    assert len({(cell.worker_key, cell.workload) for cell in cells}) == len(cells)
    assert len({cell.label for cell in cells}) == len(cells)
    threads = {cell.pool.instances * (cell.pool.threads or 0) for cell in cells[1:]}
    assert max(threads) == cores
    assert METRIC[goal] in METRICS_BY_NAME


@pytest.mark.parametrize("goal", GOALS)
def test_the_answers_stay_as_they_are_unless_allowed(story_model: Path, goal: Goal) -> None:
    kept = settings_plan(story_model, goal)
    assert not any(AXES_BY_NAME[name].changes_answers for name in kept.axes)
    allowed = settings_plan(story_model, goal, may_change_answers=True)
    assert any(AXES_BY_NAME[name].changes_answers for name in allowed.axes)
    assert allowed.may_change_answers


def test_one_stream_and_first_token_are_looked_for_in_one_process(story_model: Path) -> None:
    for goal in ("stream", "first-token"):
        cells = candidates(settings_plan(story_model, goal, cores=8))
        assert {(cell.pool.instances, cell.pool.parallel) for cell in cells} == {(1, 1)}
        assert {cell.pool.threads for cell in cells[1:]} == {2, 4, 6, 8}


def test_the_context_is_the_callers(story_model: Path) -> None:
    assert {cell.pool.n_ctx for cell in candidates(settings_plan(story_model, n_ctx=1024))} == {1024}
