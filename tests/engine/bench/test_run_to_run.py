"""The same configuration in several runs: which belong together, the verdicts, and their sentence."""

from typing import Any

import pytest

from engine.bench.analysis.comparison import compare_runs
from engine.reference import NOTED_BY_HAND
from engine.stats import compare_independent
from tests.engine.bench.run_maker import MACHINE, measured_run


def test_each_configuration_is_judged_against_itself_in_the_run_of_the_baseline() -> None:
    then, now = measured_run("a", [30, 60], seed=1), measured_run("b", [41, 60.01], seed=2, day=1)
    found = compare_runs([then, now])
    assert {key: verdict.word for key, verdict in found.run_to_run.items()} == {"b.0": "faster", "b.1": "same"}
    figures = [run.samples["tokens_per_s"][run.samples["cell"] == 0].tolist() for run in (now, then)]
    assert found.run_to_run["b.0"].ratio == pytest.approx(compare_independent(*figures).ratio)
    assert found.between_runs.startswith("Against the same configuration of a: 1 faster, 1 same; 1.00 to 1.3")
    assert found.between_runs in found.to_markdown()


def test_a_configuration_that_is_not_chosen_still_answers_for_the_run_of_the_baseline() -> None:
    then, now = measured_run("a", [30, 60], seed=1), measured_run("b", [41, 90], seed=2, day=1)
    assert set(compare_runs([then, now], chosen=["a.0", "b.1"]).run_to_run) == {"b.1"}
    assert set(compare_runs([then, now], baseline="b.0").run_to_run) == {"a.0", "a.1"}


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"machine": {**MACHINE, "cpu": "Faster CPU", "hash": "cd34"}}, True),
        ({"versions": {"llama-cpp-python": "0.3.99"}}, True),
        ({"settings": [{"parallel": 1, "model": "/models/another.gguf"}]}, False),
        ({"origin": NOTED_BY_HAND}, False),
    ],
)
def test_surroundings_may_differ_and_the_model_may_not(changes: dict[str, Any], is_same: bool) -> None:
    found = compare_runs([measured_run("a", [30]), measured_run("b", [41], day=1, **changes)])
    assert bool(found.run_to_run) is bool(found.between_runs) is is_same


def test_one_run_and_runs_of_other_settings_have_nothing_to_say() -> None:
    assert compare_runs([measured_run("a", [30, 41])]).between_runs == ""
    other = measured_run("b", [41], day=1, settings=[{"parallel": 7}])
    assert compare_runs([measured_run("a", [30]), other]).between_runs == ""
