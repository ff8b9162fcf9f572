"""Load order measured by the workbench: alone on the machine, watched, stopped, and the previous model restored."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.bench.planning.plan import Plan
from engine.comparing.arms import Arm, ComparisonPlan
from engine.errors import ConfigError, PoolClosed
from engine.settings import Settings
from engine.specs import PoolSpec, Request
from engine.workbench import Workbench, load_order_manager
from engine.workbench.load_order_manager import OrderRun
from engine.workbench.trials import Draft
from tests.waiting import until

WITHIN_S = 60.0


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    opened = Workbench(Settings.from_environment({"LOGITBENCH_HOME": str(tmp_path / "home")}))
    yield opened
    opened.close()


@pytest.fixture
def models(story_model: Path, tmp_path: Path) -> tuple[Path, Path]:
    found = tmp_path / "a.gguf", tmp_path / "b.gguf"
    for path in found:
        shutil.copy(story_model, path)
    return found


def measured(bench: Workbench, models: tuple[Path, Path]) -> OrderRun:
    run = bench.load_order.of(*models)
    assert run is not None
    run.wait(WITHIN_S)
    assert not run.is_running
    return run


def test_it_is_measured_and_can_be_seen_again(bench: Workbench, models: tuple[Path, Path]) -> None:
    bench.load_order.start(*models)
    assert bench.machine.busy_with == "The load-order measurement of a.gguf and b.gguf"
    run = measured(bench, models)
    assert [step.name for step in run.result().steps] == ["A", "B", "A"] == [step.name for step in run.steps]
    assert (run.state, run.share, run.left_s) == ("done", 1.0, 0.0)
    assert bench.load_order.running is None and bench.machine.busy_with == ""
    assert bench.load_order.of(*reversed(models)) is None


@pytest.mark.slow
def test_the_loaded_model_makes_room_and_comes_back(bench: Workbench, models: tuple[Path, Path]) -> None:
    spec = PoolSpec(parallel=2, n_ctx=256)
    bench.model_manager.load(models[0], spec)
    until(lambda: bench.model.engine)
    bench.load_order.start(*models)
    until(lambda: bench.model.path is None)
    assert measured(bench, models).error is None
    until(lambda: bench.model.engine)
    assert (bench.model.path, bench.model.spec) == (models[0], spec)


def test_stopped_it_says_so_and_the_machine_is_free(bench: Workbench, models: tuple[Path, Path]) -> None:
    bench.load_order.start(*models)
    run = bench.load_order.running
    assert run is not None
    bench.load_order.stop()
    measured(bench, models)
    assert isinstance(run.error, PoolClosed) and run.state == "stopped"
    assert len(run.steps) < 3
    bench.load_order.start(*models)
    assert measured(bench, models).state == "done"


def test_nothing_is_measured_beside_it_and_it_is_not_beside_anything(
    bench: Workbench, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="is both A and B"):
        bench.load_order.start(models[0], models[0])
    goes_on = threading.Event()
    monkeypatch.setattr(load_order_manager, "measure_load_order", lambda *_models, **_how: goes_on.wait(WITHIN_S))
    bench.load_order.start(*models)
    plan, history = Plan(model=str(models[0])), bench.history
    assert history is not None
    for begin in (
        lambda: bench.bench.start(plan),
        lambda: bench.load_order.start(*models),
        lambda: bench.files.synthesise("tiny", "Q4_0"),
        lambda: bench.tokenizer.of(models[0]),
        lambda: bench.embedding.embed(("one",)),
        lambda: bench.importing.take_in(history, "pasted lines", b"235 tokens in 80s"),
        lambda: bench.bench.measure_limits(),
        lambda: bench.bench.build_llama_bench(),
        lambda: bench.backends.start(""),
        lambda: bench.model_manager.load(models[0]),
        lambda: bench.compare.start(ComparisonPlan(prompt="Once", arms=(Arm(model=str(models[0])),))),
    ):
        with pytest.raises(
            ConfigError, match="^The load-order measurement of a.gguf and b.gguf .*Wait for it, or stop it"
        ):
            begin()
    goes_on.set()
    measured(bench, models)
    bench.model_manager.load(models[0])
    until(lambda: bench.model.engine)
    trial = bench.trials.submit(Draft("Once", request=Request(max_tokens=400)))
    with pytest.raises(ConfigError, match="A trial is still running"):
        bench.load_order.start(*models)
    trial.job.cancel()


def test_a_model_that_cannot_be_loaded_is_the_reason(bench: Workbench, models: tuple[Path, Path]) -> None:
    models[1].write_bytes(b"no model")
    bench.load_order.start(*models)
    assert "b.gguf" in str(measured(bench, models).error)


def test_closing_ends_it_and_loads_nothing_again(tmp_path: Path, models: tuple[Path, Path]) -> None:
    bench = Workbench(Settings.from_environment({"LOGITBENCH_HOME": str(tmp_path / "other")}))
    bench.model_manager.load(models[0])
    until(lambda: bench.model.engine)
    bench.load_order.start(*models)
    run = bench.load_order.of(*models)
    bench.close()
    assert run is not None and not run.is_running
    assert bench.model.path is None
    with pytest.raises(PoolClosed):
        bench.load_order.start(*models)
