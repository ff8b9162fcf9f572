"""Filter choices: the values that occur, also after runs and trials have come and gone."""

import math

import pytest

from engine.errors import ConfigError
from engine.history import History, ModelIdentity
from engine.specs import Sampling
from tests.engine.history.run_maker import cells_with, keep_run
from tests.engine.history.trial_maker import make_trial


def test_choices_are_what_there_is(history: History, three: dict[str, str]) -> None:
    keep_run(history, machine={"hash": "d0", "cpu": "CPU a"}, cells=cells_with(model="/m/a-Q8_0.gguf", pin=True))
    history.marks.tag("run", [three["a"]], add=["night"])
    found = history.find.choices("run")
    assert found.models == history.find.models() == ["a-Q8_0", "b-q4_k_m", "c-F16"]
    assert found.quantisations == ["F16", "Q4_K_M", "Q8_0"]
    assert found.machines == {"a0": "CPU a (a0)", "d0": "CPU a (d0)", "b0": "CPU b", "c0": "CPU c"}
    assert (found.tags, found.origins) == (["night"], ["llama-bench", "measured"])
    assert found.questions == ["python", "speed", "users"]
    assert found.ranges == {"n_ctx": (512, 2048), "threads": (2, 2)}


def test_choices_follow_trials_that_come_and_go(history: History) -> None:
    short, long = make_trial(2), make_trial(9)
    ends = []
    for change in (
        lambda: history.record(short).result(60),
        lambda: history.record(long).result(60),
        lambda: history.delete(short.id),
        lambda: history.restore(short.id),
    ):
        change()
        ends.append(history.find.choices("trial").ranges["num_generated"])
    assert ends == [(2, 2), (2, 9), (9, 9), (2, 9)]


def test_choices_follow_runs_that_come_and_go(history: History) -> None:
    few, many = (keep_run(history, cells=cells_with(threads=threads)) for threads in (1, 8))
    ends = []
    for change in (lambda: None, lambda: history.runs.delete(few), lambda: history.runs.restore(few)):
        change()
        ends.append(history.find.choices("run").ranges["threads"])
    keep_run(history, cells=cells_with(threads=64))
    history.runs.delete(many)
    assert [*ends, history.find.choices("run").ranges["threads"]] == [(1, 8), (8, 8), (1, 8), (1, 64)]


def test_choices_of_trials(history: History) -> None:
    for temperature, label in ((0.2, ""), (1.5, "again")):
        model = ModelIdentity("story", "story.gguf", "0f" * 32, "Q8_0", 7)
        sampling = Sampling(temperature=temperature, logit_bias=((1, -math.inf),))
        history.record(make_trial(model=model, label=label, sampling=sampling)).result(60)
    found = history.find.choices("trial")
    assert (found.models, found.quantisations, found.origins) == (["story"], ["Q8_0"], ["again"])
    assert (found.machines, found.questions, found.tags) == ({}, [], [])
    assert found.ranges["temperature"] == (0.2, 1.5)
    assert found.ranges["num_generated"] == (6, 6)
    assert 0 < found.ranges["lowest_p"][0] <= found.ranges["lowest_p"][1] <= 1
    with pytest.raises(ConfigError, match="kind"):
        history.find.choices("comparison")
