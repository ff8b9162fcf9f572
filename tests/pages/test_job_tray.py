"""The job tray: everything that runs is on every page, with what is left and Stop."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from engine.bench.planning.plan import Plan
from engine.models import embedded_model
from engine.settings import Settings
from engine.tasks import Task, TaskRunner
from engine.workbench import Workbench
from engine.workbench.machine_lease import MachineLease
from engine.workbench.model_files import FileTask, ModelFiles
from pages.parts import job_tray, task_progress
from tests.pages.app import frame
from tests.pages.bench_harness import ScriptedManager, make_run
from tests.scripted_task import ScriptedTask
from tests.waiting import until

WITHIN_S = 60.0


@pytest.fixture(autouse=True)
def manager(bench: Workbench, manager: ScriptedManager, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedManager]:
    """Nothing runs at first, and nothing is left running."""
    monkeypatch.setattr(bench, "files", ModelFiles(Settings.from_environment(), MachineLease()))
    yield manager
    bench.files.close()


def opened() -> AppTest:
    at = frame().run()
    assert [title.value for title in at.title] == ["Prompt lab"]
    return at


def captions(at: AppTest) -> list[str]:
    return [caption.value for caption in at.sidebar.caption]


def hanging(bench: Workbench, name: str) -> FileTask:
    """A file that is being fetched, a quarter of it, until it is stopped."""
    begun = ScriptedTask(name, 0.25, "1.00 MB of 4.00 MB", 75.0)
    task = FileTask("get", name, lambda: begun)
    bench.files._start(task)
    until(lambda: task.share == 0.25, within_s=WITHIN_S)
    return task


def put(monkeypatch: pytest.MonkeyPatch, bench: Workbench, manager: str, task: Task[Any], **facts: object) -> None:
    """Have a manager of the workbench run this task."""
    for name, fact in facts.items():
        setattr(task, name, fact)
    runner = TaskRunner[Any]()
    runner.start(task)
    monkeypatch.setattr(bench, manager, SimpleNamespace(reading=task) if manager == "meaning" else runner)


def test_where_nothing_runs_there_is_no_tray(bench: Workbench) -> None:
    assert list(job_tray.jobs(bench)) == []
    assert not [button for button in opened().sidebar.button if button.label == "Stop"]


def test_a_download_is_on_every_page_and_can_be_stopped(bench: Workbench) -> None:
    task = hanging(bench, "someone/<b>model")
    at = opened()
    assert "Fetching" in captions(at) and "75 s left" in captions(at)
    at.button(key="tray_stop_Fetching").click().run()
    assert task.wait(WITHIN_S) and task.state == "stopped"
    assert "Fetching" not in captions(opened())


def test_all_that_runs_is_listed_and_can_be_stopped(
    bench: Workbench, manager: ScriptedManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(model=str(embedded_model()), axes={"parallel": (1, 2)}, rounds=2)
    manager.begin(make_run(replace(plan, rounds=1)), plan, done=1, total=4, left_s=110)
    hanging(bench, "someone/model")
    compared = ScriptedTask("A comparison", 0.25, "2 of 8 trials, loading b.gguf")
    put(monkeypatch, bench, "compare", compared, record=SimpleNamespace(id="an-id"))
    loads = ScriptedTask("The load order", 0.5, "Loading b.gguf, 2 of 3")
    put(monkeypatch, bench, "load_order", loads, a=Path("/m/a.gguf"), b=Path("/m/b.gguf"))
    put(monkeypatch, bench, "backends", ScriptedTask("A measurement of embedding backends", 0.5, "onnx", 20.0))
    put(monkeypatch, bench, "meaning", ScriptedTask("Reading", 0.25, "30 of 120 texts", 9.0))
    put(monkeypatch, bench, "importing", ScriptedTask("Importing a.zip", 0.75, left_s=3.0))
    changes: Any = bench.clusters._changes
    changes.start(ScriptedTask("Changing the workers", 0.5, "starting a worker on b"))
    manager.background.start(ScriptedTask("Measuring this machine", 0.5, left_s=120.0))
    found = {job.title: job for job in job_tray.jobs(bench)}
    assert {title: (job.line, job.page, task_progress.left(job.task)) for title, job in found.items()} == {
        "Benchmark": ("Sweep · 1 sample", "benchmark", "2 min left"),
        "Comparison": ("2 of 8 trials, loading b.gguf", "compare", task_progress.UNKNOWN),
        "Fetching": ("someone/model · 1.00 MB of 4.00 MB", "models", "75 s left"),
        "Load order": ("Loading b.gguf, 2 of 3", "models", task_progress.UNKNOWN),
        "Embedding backends": ("onnx", "embeddings", "20 s left"),
        "Search by meaning": ("30 of 120 texts", "history", "9 s left"),
        "In the background": ("Measuring this machine", "benchmark", "2 min left"),
        "Import": ("Importing a.zip", "history", "3 s left"),
        "Workers": ("starting a worker on b", "prompt_lab", task_progress.UNKNOWN),
    }
    assert found["Comparison"].query == {"comparison": "an-id"}
    assert found["Load order"].query == {"view": "order", "model": "/m/a.gguf", "second": "/m/b.gguf"}
    compared.waits_for = "A benchmark"
    assert task_progress.left(compared) == "waiting for: A benchmark"
    for job in found.values():
        job.task.stop()
        assert task_progress.left(job.task) == "stopping"
        assert job.task.wait(WITHIN_S)
    assert list(job_tray.jobs(bench)) == []


@pytest.mark.parametrize("measures", ["nothing", "a benchmark", "a benchmark over nodes"])
def test_the_tray_looks_less_often_while_a_benchmark_measures(
    bench: Workbench, manager: ScriptedManager, monkeypatch: pytest.MonkeyPatch, measures: str
) -> None:
    plan = Plan(model=str(embedded_model()), axes={"parallel": (1, 2)}, rounds=2)
    hanging(bench, "someone/model")
    if measures == "a benchmark":
        manager.begin(make_run(plan), plan)
    elif measures == "a benchmark over nodes":
        put(monkeypatch, bench, "nodes_bench", ScriptedTask("The benchmark over nodes"), plan=plan)
    drawn: list[float] = []

    def fragment(_draw: object, run_every: float) -> Callable[..., None]:
        return lambda *_given: drawn.append(run_every)

    monkeypatch.setattr("streamlit.fragment", fragment)
    job_tray.show({})
    assert drawn == [job_tray.REFRESH_S if measures == "nothing" else job_tray.WHILE_MEASURING_S]
    for job in job_tray.jobs(bench):
        job.task.stop()
