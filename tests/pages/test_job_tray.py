"""The job tray: everything that runs is on every page, with what is left and Stop."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from streamlit.testing.v1 import AppTest

from engine.bench.planning.plan import Plan
from engine.models import embedded_model
from engine.settings import Settings
from engine.workbench import Workbench
from engine.workbench.backend_slot import BackendRun
from engine.workbench.background import Task
from engine.workbench.compare_run import Progress
from engine.workbench.load_order_slot import LoadOrderSlot, OrderRun
from engine.workbench.meaning_slot import Reading
from engine.workbench.model_files import FileTask, ModelFiles
from engine.workbench.model_slot import ModelSlot
from pages.parts import job_tray
from tests.pages.bench_harness import ScriptedSlot, make_run

ROUTER = Path(__file__).parents[2] / "pages" / "router.py"
WITHIN_S = 30.0


@pytest.fixture(autouse=True)
def slot(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedSlot]:
    """Nothing runs at first, and nothing is left running."""
    scripted = ScriptedSlot()
    monkeypatch.setattr(bench, "bench", scripted)
    monkeypatch.setattr(bench, "files", ModelFiles(Settings.from_environment(), lambda: False))
    monkeypatch.setattr(bench, "load_order", LoadOrderSlot(ModelSlot(), lambda: ""))
    yield scripted
    bench.files.close()


def opened() -> AppTest:
    at = AppTest.from_file(str(ROUTER), default_timeout=60).run()
    assert [title.value for title in at.title] == ["Prompt lab"]
    return at


def told(at: AppTest) -> list[str]:
    return [caption.value for caption in at.sidebar.caption]


def hanging(bench: Workbench, name: str) -> FileTask:
    """A file that is being fetched, a quarter of it, until it is stopped."""
    begun, stopped = threading.Event(), threading.Event()

    class Fetched:
        progress = SimpleNamespace(state="fetching", num_bytes=10**6, total_bytes=4 * 10**6, share=0.25, left_s=75.0)
        start = staticmethod(begun.set)
        cancel = staticmethod(stopped.set)

        def result(self, timeout: float | None = None) -> Path:
            stopped.wait(WITHIN_S)
            return Path(name)

    task = FileTask("get", name, Fetched)
    bench.files._start(task)
    assert begun.wait(WITHIN_S)
    return task


def test_where_nothing_runs_there_is_no_tray(bench: Workbench) -> None:
    assert list(job_tray.jobs(bench)) == []
    assert not [button for button in opened().sidebar.button if button.label == "Stop"]


def test_a_download_is_on_every_page_and_can_be_stopped(bench: Workbench) -> None:
    task = hanging(bench, "someone/<b>model")
    at = opened()
    assert "Fetching" in told(at) and "75 s left" in told(at)
    at.button(key="tray_stop_Fetching").click().run()
    task.wait(WITHIN_S)
    assert task.is_stopped
    assert "Fetching" not in told(opened())


def test_all_that_runs_is_listed(bench: Workbench, slot: ScriptedSlot, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(model=str(embedded_model()), axes={"parallel": (1, 2)}, rounds=2)
    slot.begin(make_run(replace(plan, rounds=1)), plan, done=1, total=4, left_s=100)
    task = hanging(bench, "someone/model")
    monkeypatch.setattr(
        bench, "compare",
        SimpleNamespace(running=Progress("an-id", 2, 8, None, "loading b.gguf"), stop=lambda: None),
    )  # fmt: skip
    run = bench.load_order._current = OrderRun(Path("/m/a.gguf"), Path("/m/b.gguf"))
    slot.background._task = Task("Measuring this machine", 0.5, left_s=90)
    found = {job.title: job for job in job_tray.jobs(bench)}
    assert list(found) == ["Benchmark", "Comparison", "Fetching", "Load order", "In the background"]
    assert found["Benchmark"].line == "Sweep 1/4"
    assert (found["Comparison"].line, found["Comparison"].left) == ("2/8 answers", "loading b.gguf")
    assert found["Comparison"].query == {"comparison": "an-id"}
    assert found["Load order"].query == {"view": "order", "model": "/m/a.gguf", "second": "/m/b.gguf"}
    assert found["In the background"].left == "2 min left"
    found["In the background"].stop()
    assert next(job for job in job_tray.jobs(bench) if job.title == "In the background").left == "stopping"
    assert {job.page for job in found.values()} == {"benchmark", "compare", "models"}
    stop = found["Load order"].stop
    assert stop is not None
    stop()
    assert run.is_stopped
    task.cancel()


def test_texts_that_are_read_by_meaning_show_what_they_wait_for(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Reading(done=30, total=120, left_s=9.0, waits_for="")
    monkeypatch.setattr(bench, "meaning", SimpleNamespace(reading=reading, is_stopped=False, stop=lambda: None))
    (job,) = job_tray.jobs(bench)
    assert (job.line, job.share, job.left) == ("30/120 texts", 0.25, "9 s left")
    assert job.page == job_tray.HISTORY and job.stop is not None
    bench.meaning.reading = reading._replace(waits_for="A benchmark")
    assert next(job_tray.jobs(bench)).left == "waits: A benchmark"
    bench.meaning.is_stopped = True
    assert list(job_tray.jobs(bench)) == []


def test_backends_that_are_measured_can_be_stopped(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = BackendRun("")
    run.share, run.doing = 0.5, "onnx"
    monkeypatch.setattr(bench, "backends", SimpleNamespace(running=run))
    (job,) = job_tray.jobs(bench)
    assert (job.line, job.share, job.page) == ("onnx", 0.5, job_tray.EMBEDDINGS) and job.left.endswith("left")
    assert job.stop is not None
    job.stop()
    assert run.is_stopped and next(job_tray.jobs(bench)).left == "stopping"
