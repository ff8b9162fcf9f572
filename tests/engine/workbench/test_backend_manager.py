"""Backends measured in the background with the real model: one at a time, undisturbed, stopped when unwanted."""

from collections.abc import Iterator

import pytest

from engine.embedding import measuring
from engine.embedding.choice import kept_measurement
from engine.embedding.models import find_model
from engine.embedding.sentences import shipped_sentences
from engine.errors import ConfigError, ModelError
from engine.workbench.backend_manager import BackendManager
from engine.workbench.machine_lease import MachineLease


@pytest.fixture
def manager(unmeasured_export: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[BackendManager]:
    """Manager that measures one backend, which starts immediately, with a few texts."""
    monkeypatch.setattr(measuring, "passages", lambda: shipped_sentences()[:4])
    monkeypatch.setattr(measuring, "usable", lambda _model: ["onnx"])
    opened = BackendManager(MachineLease(), make_room=lambda: None)
    yield opened
    opened.close()
    assert opened.running is None


def test_it_measures_and_the_engine_keeps_it(manager: BackendManager) -> None:
    assert manager.last("") is None
    manager.start("")
    run = manager.running
    assert run is not None and manager.last("") is run and run.left_s is None
    with pytest.raises(ConfigError, match="is still running"):
        manager.start("")
    run.wait(120)
    assert run.state == "done" and run.doing == "onnx"
    assert kept_measurement(find_model("")) is not None


def test_a_stop_ends_the_load_too(manager: BackendManager) -> None:
    manager.start("")
    run = manager.running
    assert run is not None
    run.stop()
    run.wait(60)
    assert run.state == "stopped"
    assert kept_measurement(find_model("")) is None


def test_nothing_is_measured_beside_something_else() -> None:
    machine = MachineLease()
    manager = BackendManager(machine, make_room=lambda: None)
    with machine.acquire("A benchmark", "benchmark"), pytest.raises(ConfigError, match="A benchmark is still running"):
        manager.start("")
    assert manager.last("") is None


def test_a_model_that_is_not_here_is_said_at_once(manager: BackendManager) -> None:
    with pytest.raises(ModelError, match="not on this machine"):
        manager.start("/nowhere")
