"""Explanation of a run: its words in plain language, and only those that it uses."""

from dataclasses import replace
from typing import Any

import pytest

from engine.bench.analysis.explanation import explanation, in_words
from engine.bench.analysis.scatter import scatter_of
from engine.bench.analysis.summary import summarise
from engine.runs import RunRecord
from tests.engine.bench.run_maker import measured_run

LAYOUTS: list[dict[str, Any]] = [{"layout": "1x2"}, {"layout": "2x1"}]


def terms(run: RunRecord) -> dict[str, str]:
    summary = summarise(run)
    return dict(explanation(run, summary, scatter_of(run.samples, summary.main_metric)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"layout": "1x1", "parallel": 1}, "1 process with 1 thread, 1 text at a time"),
        ({"layout": "1x2", "parallel": 16}, "1 process with 2 threads, 16 texts at once"),
        ({"layout": "4x7", "parallel": 2}, "4 processes with 7 threads each, 2 texts at once in each"),
        ({"layout": "2x1", "backend": "torch"}, "2 processes with 1 thread each"),
        ({"parallel": 4}, ""),
        ({"layout": "?"}, ""),
        ({"layout": 3}, ""),
    ],
)
def test_a_configuration_in_words(settings: dict[str, Any], words: str) -> None:
    assert in_words(settings) == words


def test_a_run_explains_what_it_varies_and_how_it_was_measured() -> None:
    found = terms(measured_run("r", [100, 150], settings=LAYOUTS))
    assert list(found) == ["Layout", "Rounds", "Control", "Noise", "Verdict"]
    assert found["Layout"].startswith("“2 × 1” is 2 processes with 1 thread each.")
    assert found["Rounds"].startswith("In each of 8 rounds every configuration was measured once")
    assert "also measured in between" not in found["Control"]
    assert list(terms(measured_run("r", [100, 150]))) == ["Sequences", "Rounds", "Control", "Noise", "Verdict"]


def test_too_few_rounds_say_what_a_verdict_needs() -> None:
    assert terms(measured_run("r", [100, 150], num_rounds=3))["Rounds"].endswith(" A verdict needs 8.")


def test_a_control_that_was_measured_again_and_again_says_what_for() -> None:
    run = measured_run("r", [100, 150])
    run.samples["is_anchor"][0] = True
    assert "also measured in between" in terms(run)["Control"]


def test_what_does_not_apply_is_not_explained() -> None:
    alone = terms(measured_run("r", [100]))
    assert list(alone) == ["Noise"]
    apart = terms(measured_run("r", [100, 150], origin="llama-bench"))
    assert "Rounds" not in apart
    search = terms(replace(measured_run("r", [100, 150]), question="settings"))
    assert "Rounds" not in search
    assert terms(measured_run("r", [100, 150], num_rounds=0)) == {}
    noted: list[dict[str, Any]] = [{"layout": "1x2"}, {"layout": None, "machine": "a note"}]
    assert terms(measured_run("r", [100, 150], settings=noted))["Layout"].startswith("“1 × 2” is 1 process")


def test_another_baseline_is_not_called_the_control() -> None:
    run = measured_run("r", [100, 150])
    summary = summarise(run, baseline=1)
    found = dict(explanation(run, summary, scatter_of(run.samples, "tokens_per_s")))
    assert found["Baseline"] == "parallel 2 is what all others are compared with."
    assert "Control" not in found
