"""Answer to "Which engine is fastest here?": who is compared with whom, by what, and in which words."""

import re
from typing import Any

from engine.bench.analysis.summary import summarise
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
        "With 16 users, this pool generates 1.30 times as many tokens per second as llama-server; "
        "with 1 user, this pool and llama-server differ by less than 2 %."
    )
    assert "| baseline |" in summary.to_markdown()


def test_the_best_of_several_engines_is_compared_with_the_pool() -> None:
    speeds = {("pool", 4): 100.0, ("llama-server", 4): 80.0, (DESK, 4): 150.0}
    assert summarise(run_of(speeds)).sentence == (
        "With 4 users, desk (external) generates 1.50 times as many tokens per second as this pool."
    )
    slower = {("pool", 4): 100.0, ("llama-server", 4): 80.0, (DESK, 4): 50.0}
    assert summarise(run_of(slower)).sentence == (
        "With 4 users, this pool generates 1.25 times as many tokens per second as llama-server."
    )
    by_first_token = summarise(run_of(slower), main_metric="ttft_s").sentence
    assert "this pool is 1.25 times as fast (first token) as llama-server" in by_first_token


def test_too_few_rounds_tell_nothing() -> None:
    run = run_of({("pool", 1): 100.0, ("llama-server", 1): 120.0}, num_rounds=2)
    assert re.fullmatch(
        r"With 1 user, this pool and llama-server cannot be told apart yet: 6 more rounds .* would tell\.",
        summarise(run).sentence,
    )
