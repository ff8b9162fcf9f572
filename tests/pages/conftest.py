"""What the page tests share: one workbench with the model that ships, benchmarks that nothing measures, runs."""

import functools
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from streamlit.components.v2 import manifest_scanner

from engine.api.openai.server import ApiServer, server_of
from engine.api.openai.traffic import Traffic
from engine.bench.planning.plan import Plan
from engine.history import History
from engine.models import embedded_model
from engine.runs import RunRecord
from engine.workbench import Workbench, workbench
from tests.chat_model import CLOSING, write_chat_model
from tests.conftest import PATIENT_MS
from tests.pages.bench_harness import ScriptedManager, make_run
from tests.pages.harness import ScriptedBench, Server, serving
from tests.pages.offline import Open, opening
from tests.waiting import until


def wait_for_model(bench: Workbench) -> None:
    """Return when no model is loading any more."""
    until(lambda: not bench.model.is_loading, "the model does not load")


@pytest.fixture(scope="session", autouse=True)
def scanned_once() -> Iterator[None]:
    """Every AppTest reads the metadata of all installed packages in search of components: once is enough."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            manifest_scanner, "scan_component_manifests", functools.cache(manifest_scanner.scan_component_manifests)
        )
        yield


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    """The workbench that `current()` gives to the pages, its model loaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOGITBENCH_HOME", str(tmp_path_factory.mktemp("home")))
        bench = workbench.current()
        wait_for_model(bench)
        yield bench
        bench.close()


@pytest.fixture
def api(bench: Workbench) -> Iterator[ApiServer]:
    """The server of the pages' workbench, stopped and without calls."""
    server = server_of(bench)
    server.traffic = Traffic()
    yield server
    server.stop()


@pytest.fixture
def chatting(bench: Workbench, tmp_path: Path) -> Iterator[Workbench]:
    """The workbench on a copy of the model that carries a chat template."""
    bench.model_manager.load(write_chat_model(tmp_path / "chat.gguf", CLOSING))
    wait_for_model(bench)
    yield bench
    bench.load_default()
    wait_for_model(bench)


@pytest.fixture(scope="session")
def plan() -> Plan:
    """Layouts by sequences, in rounds enough for verdicts."""
    return Plan(
        name="Mine", model=str(embedded_model()), axes={"layout": ("1x1", "1x2", "2x1"), "parallel": (1, 4)}, rounds=12
    )


@pytest.fixture
def manager(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedManager]:
    """Benchmarks that the pages drive and nothing measures."""
    scripted = ScriptedManager(machine=bench.machine)
    monkeypatch.setattr(bench, "bench", scripted, raising=False)
    yield scripted
    scripted.close()


@pytest.fixture
def history(bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    """An empty history in the place of the workbench's own, and no embedding going on that other tests began."""
    until(lambda: not bench.embedding.is_busy, "an embedding of another test does not end")
    with History.open(tmp_path / "history.duckdb") as history:
        monkeypatch.setattr(bench.kept, "history", history)
        yield history


@pytest.fixture
def runs(history: History, plan: Plan) -> list[RunRecord]:
    """Three runs of one machine in the history, a day between them, the newest last."""
    small = replace(plan, axes={"layout": ("1x1", "1x2"), "parallel": (1, 4)}, rounds=6)
    first = make_run(small)
    made = [
        replace(make_run(small, seed=day), created_at=first.created_at + timedelta(days=day), name=name)
        for day, name in enumerate(("Monday", "Tuesday", "Wednesday"))
    ]
    for run in made:
        samples = run.samples.copy()
        samples["end_to_end_per_s"] = samples["tokens_per_s"] * 0.9
        history.runs.keep(replace(run, samples=samples))
    return made


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A page with one strip of trials that the tests write, and the socket behind it."""
    with serving(ScriptedBench()) as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of its own in the browser, whose scripts must not fail."""
    opened = browser.new_page(viewport={"width": 1400, "height": 900})
    opened.set_default_timeout(PATIENT_MS)
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    yield opened
    opened.close()
    assert faults == []


@pytest.fixture
def open_file(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Function that writes an offline file and opens it, in the colours of a scheme."""
    with opening(browser, tmp_path) as opened:
        yield opened
