"""Model files: one download or conversion at a time; complete, stopped, resumed, refused, never during a benchmark."""

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.bench.planning.plan import Plan
from engine.errors import ConfigError, DownloadError, ModelError, NetworkError
from engine.models.catalogue import Entry, read_catalogue
from engine.models.reading import read_model
from engine.models.synthetic import write_synthetic
from engine.settings import PREFIX, Settings
from engine.units import quantity
from engine.workbench import Workbench
from engine.workbench.machine_lease import MachineLease
from engine.workbench.model_files import FileTask, ModelFiles, quantisation_path
from tests.engine.models.hub_server import BLOCK, Hub, serving, without_login
from tests.waiting import until

NAME, FILE = "somebody/little-GGUF", "little.Q4_K_M.gguf"
DATA = random.Random(1).randbytes(300_000)
WITHIN_S = 60.0


@pytest.fixture(autouse=True)
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_login(monkeypatch, tmp_path / "no-token")


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as served:
        served.repositories[NAME] = {FILE: DATA}
        yield served


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_environment({PREFIX + "HOME": str(tmp_path / "home")})


@pytest.fixture
def files(settings: Settings) -> Iterator[ModelFiles]:
    made = ModelFiles(settings, MachineLease())
    yield made
    made.close()


def ended(files: ModelFiles) -> FileTask:
    task = files.task
    assert task is not None
    task.wait(WITHIN_S)
    assert not task.is_running
    return task


def half_come(hub: Hub, files: ModelFiles) -> FileTask:
    """Start a download that stalls after one block."""
    hub.pace.clear()
    files.get(NAME, "", hub.endpoint)
    task = files.task
    assert task is not None
    until(lambda: task.share * len(DATA) >= BLOCK)
    return task


# Downloads


def test_a_model_is_fetched_into_the_folder_of_models(hub: Hub, files: ModelFiles, settings: Settings) -> None:
    files.get(NAME, "q4_k_m", hub.endpoint)
    task = ended(files)
    assert task.error is None
    assert task.result() == (settings.models / NAME / FILE,)
    assert task.result()[0].read_bytes() == DATA
    assert (task.state, task.share) == ("done", 1)
    files.dismiss()
    assert files.task is None


def test_one_at_a_time_and_stopped_it_goes_on_where_it_was(hub: Hub, files: ModelFiles) -> None:
    task = half_come(hub, files)
    assert task.doing == f"{quantity(task.share * len(DATA), 'B')} of 300 kB"
    with pytest.raises(ConfigError, match=f"{NAME} is still running"):
        files.get(NAME, "", hub.endpoint)
    files.dismiss()
    assert files.task is task
    files.stop()
    hub.pace.set()
    assert isinstance(ended(files).error, DownloadError)
    assert (task.state, task.can_discard) == ("stopped", True)
    files.again()
    assert ended(files).error is None
    assert ended(files).result()[0].read_bytes() == DATA
    assert hub.ranges[0] == "" and hub.ranges[1].startswith("bytes=")


def test_what_had_come_can_be_thrown_away(hub: Hub, files: ModelFiles, settings: Settings) -> None:
    half_come(hub, files)
    files.stop()
    hub.pace.set()
    ended(files)
    assert list(settings.models.rglob("*.partial"))
    files.dismiss(discard=True)
    assert files.task is None
    assert not list(settings.models.rglob("*.partial"))


@pytest.mark.parametrize(
    ("name", "wanted", "kind", "message"),
    [
        ("nobody/nothing", "", DownloadError, "has no nobody/nothing"),
        (NAME, "Q8_0", ConfigError, "Choose one of"),
        ("no-such-model", "", ConfigError, "not in the catalogue"),
    ],
)
def test_what_cannot_be_fetched_is_said(
    hub: Hub, files: ModelFiles, name: str, wanted: str, kind: type[Exception], message: str
) -> None:
    files.get(name, wanted, hub.endpoint)
    task = ended(files)
    assert isinstance(task.error, kind) and message in str(task.error)
    assert not task.can_discard


def test_no_network_is_said_and_all_else_goes_on(files: ModelFiles, settings: Settings) -> None:
    files.get(NAME, "", "http://127.0.0.1:9")
    assert isinstance(ended(files).error, NetworkError)
    files.synthesise("tiny", "Q4_0")
    assert ended(files).result() == (settings.models / "tiny-Q4_0.gguf",)


def test_a_model_of_the_catalogue_that_is_here_is_found(files: ModelFiles, settings: Settings) -> None:
    text = next(entry for entry in read_catalogue().entries if entry.quantisation == "Q4_K_M")
    folder = next(entry for entry in read_catalogue().entries if not entry.quantisation)
    assert files.kept(text) is None and files.kept(folder) is None
    for entry, name in ((text, "other.Q8_0.gguf"), (text, "it.Q4_K_M.gguf"), (folder, "modules.json")):
        path = settings.models / entry.repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert files.kept(text) == settings.models / text.repository / "it.Q4_K_M.gguf"
    assert files.kept(folder) == settings.models / folder.repository
    assert isinstance(text, Entry)


# Quantised and synthetic models


@pytest.fixture
def source(settings: Settings) -> Path:
    path = settings.models / "tiny-F16.gguf"
    path.parent.mkdir(parents=True)
    write_synthetic("tiny", path, "F16")
    return path


def test_a_quantisation_lies_beside_its_source(files: ModelFiles, source: Path) -> None:
    files.quantise(source, "Q8_0")
    task = ended(files)
    assert task.error is None
    assert task.result() == (source.with_name("tiny-Q8_0.gguf"),)
    assert read_model(task.result()[0]).quantisation == "Q8_0"
    files.quantise(source, "Q8_0")
    assert "already exists" in str(ended(files).error)


def test_folders_of_others_get_no_files(files: ModelFiles, settings: Settings, story_model: Path) -> None:
    assert quantisation_path(read_model(story_model), "Q8_0", settings) == settings.models / "story-Q8_0.gguf"
    files.quantise(story_model, "Q4_0")
    task = ended(files)
    assert isinstance(task.error, ModelError) and "already quantised" in str(task.error)
    files.quantise(story_model, "Q4_0", may_requantise=True)
    assert ended(files).result()[0].parent == settings.models


def test_an_unknown_type_or_shape_is_refused(files: ModelFiles, source: Path) -> None:
    files.quantise(source, "Q99")
    assert "must be one of" in str(ended(files).error)
    files.synthesise("round", "Q4_0")
    assert "must be one of" in str(ended(files).error)
    with pytest.raises(ConfigError, match="already exists"):
        files.synthesise("tiny", "F16")


def test_a_synthetic_model_is_written_or_stopped_with_nothing_left(files: ModelFiles, settings: Settings) -> None:
    files.synthesise("llama-1.1b-32k", "Q8_0")
    task = files.task
    assert task is not None
    until(lambda: task.share or not task.is_running)
    assert task.is_running, task.error
    files.stop()
    assert "stopped" in str(ended(files).error)
    assert list(settings.models.iterdir()) == []


# During a benchmark


def test_nothing_begins_while_a_benchmark_measures(settings: Settings) -> None:
    machine = MachineLease()
    files = ModelFiles(settings, machine)
    with machine.acquire("A benchmark", "benchmark"):
        begins: list[Callable[[], object]] = [lambda: files.get(NAME), lambda: files.synthesise("tiny", "Q4_0")]
        for begin in begins:
            with pytest.raises(ConfigError, match="A benchmark has exclusive use of the machine"):
                begin()
    assert files.task is None


def test_no_benchmark_begins_while_a_model_is_fetched_and_closing_ends_it(
    hub: Hub, settings: Settings, story_model: Path
) -> None:
    bench = Workbench(settings)
    try:
        task = half_come(hub, bench.files)
        with pytest.raises(ConfigError, match=f"{NAME} is still running and would distort the measurement"):
            bench.bench.start(Plan(model=str(story_model)))
        with pytest.raises(ConfigError, match=f"{NAME} is still running and would distort the measurement"):
            bench.bench.measure_limits()
        threading.Timer(0.2, hub.pace.set).start()
    finally:
        bench.close()
    assert not task.is_running and task.is_stopped
