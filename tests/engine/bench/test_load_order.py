"""Load order A, B, A: what is measured, the conclusion, and how it ends early."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.bench.measurement import load_order
from engine.bench.measurement.load_order import LoadOrder, LoadStep, measure_load_order
from engine.bench.measurement.load_timeout import LoadTimeout
from engine.errors import ConfigError, ModelError, PoolClosed
from engine.machine import page_cache


@pytest.fixture
def models(story_model: Path, tmp_path: Path) -> tuple[Path, Path]:
    found = tmp_path / "a.gguf", tmp_path / "b.gguf"
    for path in found:
        shutil.copy(story_model, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    return found


@pytest.mark.slow
def test_each_load_is_timed_and_the_page_cache_seen_before_and_after(models: tuple[Path, Path]) -> None:
    steps: list[LoadStep] = []
    found = measure_load_order(*models, on_step=steps.append)
    assert [step.name for step in found.steps] == ["A", "B", "A"]
    assert steps == found.steps
    first, second, third = found.steps
    assert all(step.load_s > 0 and step.first_token_s > 0 for step in found.steps)
    assert first.before["A"] < first.after["A"]
    assert second.before["B"] < second.after["B"]
    assert second.before == first.after
    assert third.before == second.after
    assert found.left == second.after["A"]
    assert json.loads(json.dumps(found.to_dict()))["steps"][2]["name"] == "A"


def made(left: float) -> LoadOrder:
    steps = [
        LoadStep("A", 11.7, 1.0, {"A": 0.0, "B": 0.0}, {"A": 1.0, "B": 0.0}),
        LoadStep("B", 16.9, 1.0, {"A": 1.0, "B": 0.0}, {"A": left, "B": 1.0}),
        LoadStep("A", 0.2, 1.0, {"A": left, "B": 1.0}, {"A": 1.0, "B": 0.5}),
    ]
    return LoadOrder(Path("a.gguf"), Path("b.gguf"), steps)


def test_it_says_whether_the_second_pushed_the_first_out() -> None:
    pushed, both, unknown = made(0.2), made(1.0), made(float("nan"))
    assert pushed.is_pushed_out
    assert pushed.says == (
        "B evicted A: 20.0 % of A was still in memory after B. "
        "A loaded in 11.7 s from the disk, B in 16.9 s, A again in 200 ms."
    )
    assert not both.is_pushed_out
    assert both.says.startswith("Both fit in memory: 100 % of A was still in memory after B.")
    assert not unknown.is_pushed_out
    assert unknown.says.startswith("This system does not report what is in the page cache. A loaded")


@pytest.mark.slow
def test_a_model_that_is_pushed_out_is_seen(models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is not short here, so A is dropped from the page cache when B is loaded."""
    measured = load_order._load

    def loads(name: str, *rest: Any) -> LoadStep:
        if name == "B":
            page_cache.drop(models[0])
        return measured(name, *rest)

    monkeypatch.setattr(load_order, "_load", loads)
    found = measure_load_order(*models)
    assert found.is_pushed_out
    assert found.left < 0.5 < found.steps[0].after["A"]


def test_what_cannot_be_compared_is_refused(models: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is both A and B"):
        measure_load_order(models[0], models[0])
    with pytest.raises(ModelError, match="missing"):
        measure_load_order(models[0], tmp_path / "missing.gguf")


def test_it_can_be_stopped(models: tuple[Path, Path]) -> None:
    steps: list[LoadStep] = []

    def begin(timeout: LoadTimeout) -> None:
        if steps:
            timeout.stop()

    with pytest.raises(PoolClosed, match="stopped"):
        measure_load_order(*models, on_step=steps.append, on_opening=begin)
    assert [step.name for step in steps] == ["A"]
