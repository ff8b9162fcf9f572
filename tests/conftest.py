"""What all tests share: a home folder of their own, the model that ships, a pool on it."""

import fcntl
import math
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from engine.bench.measurement.embedding import open_embedding_target
from engine.bench.measurement.target import open_engine_target
from engine.bench.running import strategies
from engine.embedding.agreement import SAME
from engine.embedding.choice import BackendSpeed, Measurement, keep_measurement
from engine.embedding.models import find_model
from engine.embedding.pool import EmbeddingPool
from engine.embedding.specs import EmbedSpec
from engine.models.library import embedded_model
from engine.models.quantise import QuantiseJob
from engine.models.reading import read_model
from engine.pool.pool import Pool
from engine.settings import PREFIX
from engine.specs import Sampling
from tests.story_folder import write_folder

SHORT_SAMPLE_S = 0.1
ENDLESS = Sampling(seed=1, logit_bias=((2, float("-inf")),))
"""Sampling by which the shipped model never ends its text."""
PATIENT_MS = 90_000
"""How long tests in the browser wait for what they expect: others run beside them, and what is slow is not wrong."""

expect.set_options(timeout=PATIENT_MS)

# A shell's background ignores it, and so would every program that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is slow once the time is over at which CI stops to begin such tests, in seconds since 1970."""
    is_optional = item.get_closest_marker("slow") or item.get_closest_marker("alone")
    if is_optional and time.time() > float(os.environ.get("SLOW_TESTS_UNTIL", "inf")):
        pytest.skip("the time of this run is over")


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder; no setting of the person who runs the tests reaches them."""
    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv(PREFIX + "HOME", str(folder))
    return folder


@pytest.fixture
def models_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of models that the settings name, empty; caches of other programs are out of reach."""
    found = tmp_path / "models"
    found.mkdir()
    monkeypatch.setenv(PREFIX + "MODELS", str(found))
    monkeypatch.setenv("HOME", str(tmp_path))
    return found


@pytest.fixture(scope="module")
def short_samples() -> Iterator[None]:
    """Runs take short samples, and none again: other tests beside this one make the machine's speed change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strategies, "ALLOWED_DRIFT", math.inf)
        for open_one in (open_engine_target, open_embedding_target):
            defaults = open_one.__kwdefaults__
            assert defaults is not None
            patch.setitem(defaults, "sample_s", SHORT_SAMPLE_S)
        yield


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A home folder in which the embedded model lies in ONNX Runtime's form, and that was found to be the fastest.

    One for all processes of a run, as bringing it into that form takes ten seconds.
    """
    own = tmp_path_factory.getbasetemp()
    folder = (own if worker_id == "master" else own.parent) / "exported"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        patch.setenv(PREFIX + "HOME", str(folder))
        EmbeddingPool(EmbedSpec(backend="onnx")).close()
        model = find_model("")
        backends = (
            BackendSpeed("torch", speedup=1.0, agreement=SAME),
            BackendSpeed("onnx", speedup=1.1, agreement=SAME),
        )
        keep_measurement(model, Measurement(model.name, "2026-11-21T12:00:00+00:00", 83, 5, backends))
    return folder


def lend_exports(home: Path, exported: Path) -> None:
    """Have what was exported and measured found in another home folder too."""
    (home / "embedding").symlink_to(exported / "embedding")


@pytest.fixture
def unmeasured_export(home: Path, exported: Path) -> None:
    """ONNX Runtime's form is there in the home folder of this test, but no backend was measured."""
    own = find_model("").kept_in()
    own.mkdir(parents=True)
    (own / "onnx").symlink_to(exported / own.relative_to(home) / "onnx")


@pytest.fixture
def quick_embedding(home: Path, exported: Path) -> None:
    """Embedding by "auto" needs no PyTorch, which takes seconds to start, in the home folder of this test."""
    lend_exports(home, exported)


@pytest.fixture(scope="session")
def story_model() -> Path:
    """The GGUF file that ships."""
    return embedded_model()


@pytest.fixture(scope="session")
def story_folder(story_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that ships as a folder of safetensors, in float32."""
    return write_folder(story_model, tmp_path_factory.mktemp("folders") / "story")


@pytest.fixture(scope="session")
def float_model(story_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that ships as a GGUF file of 32-bit floats."""
    path = tmp_path_factory.mktemp("float") / "story-F32.gguf"
    return QuantiseJob(read_model(story_model), "F32", path, threads=1, may_requantise=True).start().result(60)


@pytest.fixture(scope="session")
def quantised_model(story_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that ships, with four bits a weight."""
    path = tmp_path_factory.mktemp("quantised") / "story-Q4_0.gguf"
    job = QuantiseJob(read_model(story_model), "Q4_0", path, threads=2, may_requantise=True)
    return job.start().result(60)


@pytest.fixture(scope="session")
def pool(story_model: Path) -> Iterator[Pool]:
    """One worker with four sequences of 512 tokens."""
    with Pool(story_model, parallel=4, n_ctx=512) as opened:
        yield opened


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium as the system has it; one for all tests, as Playwright runs only once in a process.

    Pages of one context share a process, which keeps the compiled scripts: half the processor time of a page load.
    """
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--process-per-site"]
        running = playwright.chromium.launch(executable_path=path, args=arguments)
        yield running
        running.close()
