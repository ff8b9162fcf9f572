"""Backends measured in the background with the real model: one at a time, undisturbed, stopped when nobody wants it."""

import math
from collections.abc import Iterator

import pytest

from engine.embedding import measuring
from engine.embedding.choice import kept_measurement
from engine.embedding.models import find_model
from engine.embedding.sentences import shipped_sentences
from engine.errors import ConfigError, ModelError
from engine.workbench.backend_slot import BackendSlot


@pytest.fixture
def slot(unmeasured_export: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[BackendSlot]:
    """One that measures a backend that starts at once with a few texts."""
    monkeypatch.setattr(measuring, "passages", lambda: shipped_sentences()[:4])
    monkeypatch.setattr(measuring, "usable", lambda _model: ["onnx"])
    opened = BackendSlot(busy_with=lambda: "", make_room=lambda: None)
    yield opened
    opened.close()
    assert opened.running is None


def test_it_measures_and_the_engine_keeps_it(slot: BackendSlot) -> None:
    assert slot.last("") is None and slot.doing == ""
    slot.start("")
    run = slot.running
    assert run is not None and slot.last("") is run and math.isnan(run.left_s)
    assert slot.doing == "A measurement of embedding backends"
    with pytest.raises(ConfigError, match="is not done yet"):
        slot.start("")
    run.wait(120)
    assert not run.is_running and run.error is None and not run.is_stopped
    assert run.share == 3 / 4  # told before the last of the passes
    assert kept_measurement(find_model("")) is not None


def test_a_stop_ends_the_load_too(slot: BackendSlot) -> None:
    slot.start("")
    run = slot.running
    assert run is not None
    run.stop()
    run.wait(20)
    assert not run.is_running and run.error is None
    assert kept_measurement(find_model("")) is None


def test_nothing_is_measured_beside_something_else() -> None:
    slot = BackendSlot(busy_with=lambda: "A benchmark", make_room=lambda: None)
    with pytest.raises(ConfigError, match="A benchmark is not done yet"):
        slot.start("")
    assert slot.last("") is None


def test_a_model_that_is_not_here_is_said_at_once(slot: BackendSlot) -> None:
    with pytest.raises(ModelError, match="not on this machine"):
        slot.start("/nowhere")
