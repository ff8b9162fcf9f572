"""Model library: what is known about the local models before one is loaded."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.bench.analysis.summary import summarise
from engine.bench.planning.plan import Plan
from engine.history import History
from engine.machine.fingerprint import fingerprint, fingerprint_hash
from engine.machine.limits import Limits
from engine.models import LibraryEntry, Place, estimate, read_library, read_model
from engine.models.experts import weights_read
from engine.models.synthetic import write_synthetic
from engine.settings import Settings
from engine.workbench.model_library import LibraryModel, in_memory, look_at
from engine.workbench.model_manager import default_spec
from tests.pages.bench_harness import make_run


@pytest.fixture
def history() -> Iterator[History]:
    with History.open(Settings.from_environment().history) as opened:
        yield opened


@pytest.fixture(scope="session")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[LibraryEntry]:
    """Two models and a file that is not a model."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("tiny", "other"):
        write_synthetic("tiny", folder / f"{name}.gguf", "Q8_0")
    (folder / "broken.gguf").write_bytes(b"GGUF")
    return read_library([Place("Folder", folder)])


@pytest.fixture
def limits() -> Limits:
    return Limits(machine_hash="m", num_cores=2, cache_bytes=0, bandwidth=((1, 5e9), (2, 8e9)), flops=1e9)


def assert_speed(model: LibraryModel, per_s: float, provenance: str) -> None:
    assert model.speed is not None and model.speed.provenance == provenance
    assert model.speed.decode_per_s == pytest.approx(per_s)


def test_broken_files_are_left_out_and_memory_is_that_of_the_usual_pool(entries: list[LibraryEntry]) -> None:
    models = look_at(entries)
    assert [model.file.path.name for model in models] == ["other.gguf", "tiny.gguf"]
    for model in models:
        assert model.needed.total == estimate(model.file, default_spec(model.file)).total
        assert model.speed is None


def test_the_estimate_is_bandwidth_over_weights(entries: list[LibraryEntry], limits: Limits) -> None:
    for model in look_at(entries, limits=limits):
        assert_speed(model, 8e9 / weights_read(model.file, 1), "estimated")


def test_what_was_measured_on_this_machine_goes_before_an_estimate(
    entries: list[LibraryEntry], history: History, limits: Limits
) -> None:
    machine = fingerprint()
    path = next(entry.file.path for entry in entries if entry.file.path.name == "tiny.gguf")
    plan = Plan(model=str(path), axes={"layout": ("1x1", "1x2")}, rounds=2)
    here = make_run(plan, machine=machine | {"hash": fingerprint_hash(machine)}, noise=0)
    history.runs.keep(here)
    history.runs.keep(make_run(plan, machine={"cpu": "Another", "hash": "another"}, seed=1))
    other, tiny = look_at(entries, history, limits)
    fastest = max(cell.metrics["decode_per_s"].value for cell in summarise(here).cells)
    assert_speed(tiny, fastest, "measured here")
    assert_speed(other, 8e9 / weights_read(other.file, 1), "estimated")


def test_how_much_lies_in_memory_is_a_share_or_unknown(story_model: Path, tmp_path: Path) -> None:
    file = read_model(story_model)
    share = in_memory(file)
    assert np.isnan(share) or 0 <= share <= 1
    copied = tmp_path / "gone.gguf"
    copied.write_bytes(story_model.read_bytes())
    gone = read_model(copied)
    assert in_memory(gone) > 0
    copied.unlink()
    assert np.isnan(in_memory(gone))
