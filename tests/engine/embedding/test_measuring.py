"""Measurement of the installed model's backends against each other, complete and stopped halfway."""

from pathlib import Path

import pytest

from engine.embedding import measuring
from engine.embedding.agreement import SAME
from engine.embedding.choice import kept_measurement
from engine.embedding.measuring import Progress, measure_backends
from engine.embedding.models import find_model
from engine.embedding.sentences import passages, shipped_sentences
from engine.errors import ModelError

pytestmark = pytest.mark.slow


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few texts and two backends, because these tests are about what happens to the figures."""
    monkeypatch.setattr(measuring, "passages", lambda: shipped_sentences()[:8])
    monkeypatch.setattr(measuring, "usable", lambda _model: ["torch", "torch-bf16"])


@pytest.fixture
def quick(few: None, unmeasured_export: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few texts and two backends: the first starts immediately, the second cannot read the model."""
    monkeypatch.setattr(measuring, "usable", lambda _model: ["onnx", "llama"])


@pytest.mark.usefixtures("few")
def test_backends_are_measured_and_kept() -> None:
    reports: list[Progress] = []
    found = measure_backends(rounds=2, on_progress=reports.append)
    assert found is not None
    assert found == kept_measurement(find_model(""))
    reference, reduced = found.backends
    assert (reference.name, reference.speedup, reference.agreement) == ("torch", 1.0, SAME)
    assert reduced.name == "torch-bf16"
    assert 0.98 < reduced.agreement.worst_cosine < 0.99999
    for one in found.backends:
        assert not one.reason
        assert one.tokens_per_s > one.texts_per_s > 0
        assert one.speedup > 0
        assert one.memory_bytes > 1e8
    shares = [progress.share for progress in reports]
    assert shares == sorted(shares) and shares[0] == 0 and 0.8 < shares[-1] <= 1
    assert {"loading torch", "torch", "loading torch-bf16", "torch-bf16"} == {progress.doing for progress in reports}


@pytest.mark.usefixtures("quick")
def test_a_backend_that_fails_has_a_reason_and_the_others_figures() -> None:
    found = measure_backends(rounds=1)
    assert found is not None
    assert found.backends[0].texts_per_s > 0
    assert "reads only GGUF files" in found.backends[1].reason


@pytest.mark.usefixtures("quick")
def test_a_stop_keeps_nothing() -> None:
    reports: list[Progress] = []
    assert measure_backends(rounds=2, on_progress=reports.append, is_stopped=lambda: len(reports) > 2) is None
    assert kept_measurement(find_model("")) is None


def test_a_gguf_file_has_speed_and_no_reference(minilm_gguf: Path) -> None:
    found = measure_backends(str(minilm_gguf), rounds=1)
    assert found is not None
    (row,) = found.backends
    assert (row.name, row.reason) == ("llama", "")
    assert row.texts_per_s > 0
    assert row.to_dict()["speedup"] is None and row.to_dict()["worst_cosine"] is None


def test_a_model_that_is_not_here_is_said() -> None:
    with pytest.raises(ModelError, match="is not on this machine"):
        measure_backends("/nowhere")


def test_the_texts_are_short_and_long() -> None:
    words = [len(text.split()) for text in passages()]
    assert min(words) < 10 and max(words) > 100
