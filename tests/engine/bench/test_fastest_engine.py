"""Answer to "Which engine is fastest here?": who is compared with whom, by what, and in which words."""

import re
from typing import Any

import numpy as np
import pytest

from engine.bench.analysis import entries
from engine.bench.analysis.comparison import compare_runs
from engine.bench.analysis.engines import compared_with, uncompared
from engine.bench.analysis.entries import offer
from engine.bench.analysis.summary import summarise
from engine.bench.measurement.metrics import RequestTimes, metrics_of
from engine.bench.planning.plan import Objective
from engine.samples import ENGINES_METRIC
from tests.engine.bench.run_maker import measured_run

DESK = "external:desk"


def run_of(speeds: dict[tuple[str, int], float], **changes: Any) -> Any:
    """A run of eight rounds with these speeds by engine and number of users."""
    settings = [{"arm": engine, "users": users} for engine, users in speeds]
    plan = {"axes": {"users": sorted({users for _, users in speeds}), "arm": ["pool"]}}
    return measured_run("r", list(speeds.values()), settings=settings, question="engines", plan=plan, **changes)


def test_every_engine_is_compared_with_the_pool_under_the_same_load() -> None:
    run = run_of(
        {("pool", 1): 100.0, ("llama-server", 1): 100.5, ("pool", 16): 390.0, ("llama-server", 16): 300.0},
        noise_sd=0.001,
    )
    summary = summarise(run)
    assert [cell.verdict and cell.verdict.word for cell in summary.cells] == [None, "same", None, "slower"]
    assert summary.baselines == {0, 2}
    assert summary.sentence == (
        "With 16 users, this pool generates 1.30 times as many tokens per second, prefill included, as llama-server; "
        "with 1 user, this pool and llama-server differ by less than 2 %."
    )
    assert "| baseline |" in summary.to_markdown()


def test_the_best_of_several_engines_is_compared_with_the_pool() -> None:
    speeds = {("pool", 4): 100.0, ("llama-server", 4): 80.0, (DESK, 4): 150.0}
    assert summarise(run_of(speeds)).sentence == (
        "With 4 users, desk (external) generates 1.50 times as many tokens per second, prefill included, as this pool."
    )
    slower = {("pool", 4): 100.0, ("llama-server", 4): 80.0, (DESK, 4): 50.0}
    assert summarise(run_of(slower)).sentence == (
        "With 4 users, this pool generates 1.25 times as many tokens per second, prefill included, as llama-server."
    )
    by_first_token = summarise(run_of(slower), main_metric="ttft_s").sentence
    assert "this pool is 1.25 times as fast (first token) as llama-server" in by_first_token


def test_too_few_rounds_tell_nothing() -> None:
    run = run_of({("pool", 1): 100.0, ("llama-server", 1): 120.0}, num_rounds=2)
    assert re.fullmatch(
        r"With 1 user, this pool and llama-server cannot be told apart yet: 6 more rounds .* would tell\.",
        summarise(run).sentence,
    )


def test_the_prefill_counts_however_many_requests_are_in_a_sample() -> None:
    """An engine with 2 s of prefill and 64 tokens, one each 1/32 s, has 16 tokens per second."""

    def rates(num: int) -> dict[str, float]:
        starts = 4.0 * np.arange(num)
        tokens = [start + 2 + np.arange(1, 65) / 32 for start in starts]
        requests = [RequestTimes(at, at, times[0], times, 64) for at, times in zip(starts, tokens, strict=True)]
        return metrics_of([[requests]], Objective())

    assert [rates(num)[ENGINES_METRIC] for num in (1, 2, 20)] == pytest.approx([16.0] * 3)
    assert rates(1)["tokens_per_s"] > 1.5 * rates(20)["tokens_per_s"]


def test_engines_are_judged_with_their_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of({("pool", 1): 100.0, ("llama-server", 1): 120.0}, noise_sd=0.001)
    run.samples["end_to_end_per_s"][run.samples["cell"] == 1] *= 0.5
    summary = summarise(run)
    assert summary.main_metric == ENGINES_METRIC and summary.best == 0
    assert summary.sentence.startswith("With 1 user, this pool generates 1.67 times as many tokens per second, prefill")
    assert summarise(run, main_metric="tokens_per_s").best == 1
    monkeypatch.setattr(entries, "FEW", 1)
    assert offer([run]).first == ["r.0"], "the first and the best of a run are chosen to be compared with other runs"


def test_engines_are_compared_under_the_same_model() -> None:
    speeds = {("pool", "/m/a.gguf"): 100.0, ("pool", "/m/b.gguf"): 50.0, ("transformers", "/m/b.gguf"): 40.0}
    settings = [{"arm": engine, "model": model} for engine, model in speeds]
    plan = {"axes": {"model": ["/m/a.gguf", "/m/b.gguf"], "arm": ["pool", "transformers"]}}
    run = measured_run("r", list(speeds.values()), settings=settings, question="engines", plan=plan)
    summary = summarise(run)
    assert compared_with(run, 0) == {2: 1} and summary.baselines == {0, 1}
    assert summary.sentence == (
        "With b, this pool generates 1.25 times as many tokens per second, prefill included, as transformers."
    )


def test_an_external_engine_beside_several_models_is_said_to_be_compared_with_nothing() -> None:
    settings = [{"arm": "pool", "model": "/m/a.gguf"}, {"arm": "pool", "model": "/m/b.gguf"}, {"arm": DESK}]
    settings += [{"arm": "transformers", "model": "/m/b.gguf"}]
    plan = {"axes": {"model": ["/m/a.gguf", "/m/b.gguf"], "arm": ["pool", DESK, "transformers"]}}
    run = measured_run("r", [100.0, 50.0, 70.0, 30.0], settings=settings, question="engines", plan=plan)
    assert uncompared(run, 0).startswith("desk (external) is compared with nothing: the plan varies the model, and")
    assert summarise(run).sentence.endswith(uncompared(run, 0))
    assert uncompared(run_of({("pool", 1): 1.0, (DESK, 2): 2.0}), 0).endswith("not measured under the same load.")


def test_compare_judges_engines_as_their_run_does() -> None:
    run = run_of(
        {("pool", 1): 100.0, ("llama-server", 1): 120.0, ("pool", 16): 390.0, ("llama-server", 16): 300.0},
        noise_sd=0.001,
    )
    found = compare_runs([run])
    assert found.main_metric == ENGINES_METRIC and found.baseline == "r.0"
    words = {key: verdict.word for (key, name), verdict in found.verdicts.items() if name == ENGINES_METRIC}
    assert words == {"r.1": "faster", "r.3": "slower"}, "each under its own number of users"
    assert "Each engine of this run is compared with this pool under the same load." in found.warnings


def test_an_external_engine_is_compared_with_the_only_model() -> None:
    settings: list[dict[str, Any]] = [{"arm": "pool", "model": "/m/a.gguf"}, {"arm": DESK, "model": None}]
    run = measured_run(
        "r", [100.0, 50.0], settings=settings, question="engines", plan={"axes": {"model": ["/m/a.gguf"]}}
    )
    assert compared_with(run, 0) == {1: 0}
